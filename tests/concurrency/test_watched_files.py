"""Files that change are read again; a version that is refused is named, and the last one stays."""

import attrs

from hastore.concurrency.watched_files import WatchedFiles
from hastore.errors import ConfigError
from tests.support.env.fake_env import fake_env


@attrs.define(eq=False)
class Watched(WatchedFiles):
    """A version that is a number; odd ones are refused."""

    GONE_HINT = "put it back"
    there: int = 0
    refused: list = attrs.field(factory=list)

    def _stamps_now(self):
        return (self.there,)

    def _read(self):
        if self.there % 2:
            raise ConfigError(f"{self.there} is odd", hint=None)
        return self.there, (self.there,)

    def _log_taken(self):
        """Log nothing."""

    def _log_refused(self, reason, _hint):
        self.refused.append(reason)

    @property
    def fault(self):
        return self._fault

    async def becomes(self, version):
        """Replace the files, and look until they count as settled."""
        self.there = version
        await self.look()
        await self.look()


async def test_a_refused_version_is_named_each_time_it_comes():
    """Also if the version in force, with its former stamps, stood there in between."""
    watched = Watched(fake_env(), 0, (0,))
    for _ in range(2):
        await watched.becomes(1)
        assert (watched.current, watched.fault) == (0, "1 is odd")
        await watched.becomes(0)
        assert (watched.current, watched.fault) == (0, None)
    assert watched.refused == ["1 is odd"] * 2
    await watched.becomes(1)
    await watched.becomes(2)
    assert (watched.current, watched.fault) == (2, None)
