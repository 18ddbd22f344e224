"""Opens whole stores with small files, and dispatches their logs."""

from hastore.config import StoreConfig
from hastore.dispatch.record_dispatcher import RecordDispatcher
from hastore.dispatch.reput_message_service import ReputMessageService
from hastore.store.message_store import MessageStore
from hastore.store.record.delay_levels import DelayLevels
from tests.support.store.open_log import DATA_DIR, STORE_HOST


def config_of(path=DATA_DIR, **changes):
    """Golden settings: files of 64 KiB unless the directory has others, 50 units a queue file."""
    return StoreConfig(
        data_dir=str(path),
        mapped_file_size_consume_queue=1_000,
        max_hash_slot_num=200,
        max_index_num=400,
        **changes,
    )


def open_store(env, config, *, master=True):
    return MessageStore.open(env, config, store_host=STORE_HOST, needs_queue_offsets=master)


async def dispatch(env, store):
    """Dispatch the whole log."""
    dispatcher = RecordDispatcher(
        store.consume_queues,
        store.index_service,
        DelayLevels.parse(store.config.message_delay_level),
    )
    log = store.commit_log
    service = ReputMessageService(
        env, log, dispatcher, lambda: log.max_offset, store.redispatch_from
    )
    await service.catch_up()
    return service
