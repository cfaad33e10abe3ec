"""Background work on partitions: deletion of segments and of replicas, compaction, checkpoints."""
