"""ACLs: their model, the index over them, and the authorizer that decides by them."""
