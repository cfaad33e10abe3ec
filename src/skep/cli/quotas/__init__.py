"""Commands about quotas of users, client ids and addresses."""
