"""The group coordinator: classic groups, consumer groups (KIP-848), share groups (KIP-932), committed offsets."""
