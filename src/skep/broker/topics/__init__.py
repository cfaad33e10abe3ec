"""Topics as requests create and see them: placement, internal topics, current leaders."""
