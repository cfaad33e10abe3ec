"""The security of one broker, in one object that ``Services`` makes: ``services.security``."""

from collections.abc import Callable

from skep.base.clock import Clock
from skep.base.config.current_config import CurrentConfig
from skep.metadata.cluster_image import ClusterImage
from skep.security.access import FULL_ACCESS, Access, FullAccess
from skep.security.principal import ANONYMOUS, Principal
from skep.security.quotas.quotas import Quotas, Windows


class Security:
    """Decides who clients are and what they may do. Follows the image, which has the users, ACLs and quotas."""

    def __init__(self, current_config: CurrentConfig, image: Callable[[], ClusterImage], clock: Clock) -> None:
        self._current_config = current_config
        self._image = image
        self.quotas = Quotas(clock, Windows.of(current_config.value.security))

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Called after each change of the image and of the options in force."""
        self.quotas.image_changed(new)

    def access(self, principal: Principal, host: str) -> Access:
        """Returns what a client may do that has authenticated as ``principal``, or as ANONYMOUS not at all."""
        return FULL_ACCESS if principal is ANONYMOUS else FullAccess(principal)
