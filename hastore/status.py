"""Outcomes of operations, roles and modes of nodes, states of connections.

The members are RocketMQ's, spelled as in 5.x; the values are what its remoting protocol and its
logs use.  ``PutMessageStatus.stored`` says whether the message *is* in the master's log: after
FLUSH_SLAVE_TIMEOUT it is stored, but less safely than requested.
"""

from __future__ import annotations

import enum


class PutMessageStatus(enum.Enum):
    """The outcome of a put."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"

    __hash__ = object.__hash__  # Enum's own is slow, and every put is counted by status

    @property
    def stored(self) -> bool:
        """Whether the message is in the master's log."""
        return self in _STORED


_STORED = frozenset(
    {
        PutMessageStatus.PUT_OK,
        PutMessageStatus.FLUSH_DISK_TIMEOUT,
        PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        PutMessageStatus.SLAVE_NOT_AVAILABLE,
    }
)


class AppendMessageStatus(enum.Enum):
    """The outcome of an append to a mapped file."""

    PUT_OK = "PUT_OK"
    END_OF_FILE = "END_OF_FILE"
    MESSAGE_SIZE_EXCEEDED = "MESSAGE_SIZE_EXCEEDED"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"  # a record cannot hold it: a separator, a number too large
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


class GetMessageStatus(enum.Enum):
    """The outcome of a read of a queue; the result names the offset to read next."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"  # there are messages, but none passes the filter
    # The queue has a unit, but the log has deleted the record.
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"  # within bounds, but in no file
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"  # after the end
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"  # at the end: the next message will be there
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"


class BrokerRole(enum.Enum):
    """RocketMQ's broker roles.  A SYNC_MASTER's producers wait for a slave."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class FlushDiskType(enum.Enum):
    """Whether a put waits for the disk (SYNC_FLUSH) or a timer flushes later (ASYNC_FLUSH)."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class HAProtocol(enum.Enum):
    """What a master and its slaves speak on the HA port."""

    CLASSIC = "classic"  # RocketMQ's without a controller
    AUTOSWITCH = "autoswitch"  # RocketMQ 5's in controller mode: with epochs


class OwnSignatures(enum.Enum):
    """Whether role requests and hastore's own may still have RocketMQ's signature."""

    PREFERRED = "preferred"  # where the last release's nodes send one that fits no other request
    REQUIRED = "required"  # never


class TlsMode(enum.Enum):
    """Whether a port takes TLS, plain bytes or both; the first byte of a connection decides."""

    DISABLED = "disabled"  # TLS is closed
    PERMISSIVE = "permissive"  # both: for the time in which clients change over
    ENFORCING = "enforcing"  # plain bytes are closed


class TlsVersion(enum.Enum):
    """The oldest version of TLS that is spoken."""

    V1_2 = "1.2"
    V1_3 = "1.3"


class ClientCertificates(enum.Enum):
    """Whether a client shows a certificate; one that is shown must be signed by the CA."""

    NONE = "none"
    ASKED = "asked"  # one without is served
    REQUIRED = "required"


class SlaveStart(enum.Enum):
    """Where a slave without a log begins (``hastore slave --from``)."""

    EARLIEST = "earliest"
    LAST_FILE = "last-file"


class HAConnectionState(enum.Enum):
    """A master's view of one slave's connection."""

    CONNECTED = "connected"  # no report yet: receives nothing, and does not count
    CATCHING_UP = "catching-up"  # has not acknowledged all of the master's log
    STREAMING = "streaming"  # has acknowledged all of the master's log
    REFUSED = "refused"  # its report was refused; the reason is kept and shown
    CLOSED = "closed"


class HAClientState(enum.Enum):
    """A slave's view of the connection to its master."""

    CONNECTING = "connecting"
    STREAMING = "streaming"
    BACKING_OFF = "backing-off"  # the link broke; a new attempt follows
    DIVERGED = "diverged"  # the logs have diverged: no further attempt
    # No further attempt: the file sizes differ, its log is damaged, or the master has deleted bytes
    # that it needs.
    FAILED = "failed"
    UNASSIGNED = "unassigned"  # a node of a replica group to which nobody has named a master
    STOPPED = "stopped"
