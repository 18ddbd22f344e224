/* What a node does most often, in C: the loops over records and keys, and the thread of the syncs.

   encode_record  twin: hastore/store/commit_log.py, store/record/message_encoder.py
   scan_records   twin: hastore/dispatch/record_scan.py
   walk_records   twin: hastore/store/recovery/record_walk.py
   fill_index     twin: hastore/store/index/file.py
   java_hash      twin: hastore/store/record/java_hash.py
   serve_syncs    twin: hastore/env/sync_thread.py
   first_lost_name      hastore/env/name_check.py

   take_sends, which reads the client port's requests, is in remoting.c.

   Each returns what its twin returns, for every input.  A record that is not ordinary (damaged, of
   a transaction, ...) ends a scan or walk, and a message that no record can hold is not encoded:
   the caller handles both in Python, so no rule for them is here.  All input is untrusted: every
   length is compared with what is left before it is used.  The layouts are those of
   hastore/store/record/layout.py and hastore/store/index/layout.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "native.h"
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* -- Java's String.hashCode, of ASCII ---------------------------------------------------------- */

static uint32_t hash_ascii(const uint8_t *text, Py_ssize_t size, uint32_t begun) {
    uint32_t hash = begun;
    for (Py_ssize_t i = 0; i < size; i++) hash = 31 * hash + text[i];
    return hash;
}

static PyObject *java_hash(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *text;
    long long begun = 0;
    if (!PyArg_ParseTuple(args, "U|L", &text, &begun)) return NULL;
    uint32_t hash = (uint32_t)begun;
    Py_ssize_t size = PyUnicode_GET_LENGTH(text);
    int kind = PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    for (Py_ssize_t i = 0; i < size; i++) {
        Py_UCS4 point = PyUnicode_READ(kind, data, i);
        if (point < 0x10000) {
            hash = 31 * hash + point;
        } else { /* two code units of UTF-16 */
            hash = 31 * hash + (0xD800 + ((point - 0x10000) >> 10));
            hash = 31 * hash + (0xDC00 + ((point - 0x10000) & 0x3FF));
        }
    }
    return PyLong_FromLong((int32_t)hash);
}

/* -- scan_records ------------------------------------------------------------------------------ */

enum {
    MAGIC = -626843481,
    MAGIC_V2 = -626843477,
    RECORD_SIZE_MIN = 91,
    HEAD_SIZE = 88, /* with IPv4 hosts; each IPv6 host adds 12 */
    TOPIC_SIZE_MAX_V1 = 127,
    TEXT_SIZE_MAX = 32767,
    TRANSACTION_TYPE_MASK = 0xC,
    PREPARED_FLAG = 0x4, /* of a transaction; ROLLBACK has it, too */
    BORN_HOST_V6_FLAG = 0x10,
    STORE_HOST_V6_FLAG = 0x20,
    INNER_BATCH_FLAG = 0x80,
    PROP_CRC_SIZE = 20,
    PROP_CRC_NAME_SIZE = 9, /* with the mark after it */
    CRC_MASK = 0x7FFFFFFF,
    UNIT_SIZE = 20,
    KEY_SIZE = 24, /* hash, physic offset, store time: 8 bytes each, in the machine's order */
    RECORDS_MAX = 1000, /* a call */
    BUCKETS = 2048,     /* of queues; a power of 2 above RECORDS_MAX */
};

typedef struct {
    const uint8_t *at;
    Py_ssize_t size;
} Text;

typedef struct {
    Text topic;
    int32_t queue_id;
    int64_t first_queue_offset, last_queue_offset; /* of a scan */
    int64_t next_queue_offset;                     /* of a walk */
    int first, last; /* units, by number; those between follow Unit.next */
    int count;
    uint32_t topic_hash; /* of "topic#" */
} Queue;

typedef struct {
    uint8_t bytes[UNIT_SIZE];
    int next;
} Unit;

typedef struct {
    const uint8_t *body, *topic, *texts; /* texts: the properties */
    Py_ssize_t body_size, topic_size, texts_size, size;
    int32_t flags, queue_id;
    int64_t queue_offset, store_ms;
} Record;

typedef struct {
    Queue queues[RECORDS_MAX];
    Unit units[RECORDS_MAX];
    int16_t buckets[BUCKETS]; /* number of a queue + 1; 0: free */
    int queue_count, unit_count;
    uint8_t *keys;
    Py_ssize_t keys_size, keys_room;
} Scan;

/* Read a record's lengths and numbers; false unless they agree, none of the flags ``refused`` is
   set, and all of it is there. */
static int read_record(const uint8_t *at, Py_ssize_t left, int64_t available, int64_t physic_offset,
                       int32_t refused, Record *record) {
    if (left < RECORD_SIZE_MIN) return 0;
    int32_t size = (int32_t)get32(at), magic = (int32_t)get32(at + 4);
    int32_t flags = (int32_t)get32(at + 36);
    if ((magic != MAGIC && magic != MAGIC_V2) || size < RECORD_SIZE_MIN) return 0;
    if (size > left || size > available || (int64_t)get64(at + 28) != physic_offset) return 0;
    if (flags & refused) return 0;
    Py_ssize_t moved = flags & BORN_HOST_V6_FLAG ? 12 : 0;
    Py_ssize_t head = HEAD_SIZE + moved + (flags & STORE_HOST_V6_FLAG ? 12 : 0);
    Py_ssize_t topic_length_size = magic == MAGIC_V2 ? 2 : 1;
    Py_ssize_t rest = size - head - topic_length_size - 2; /* of body, topic and properties */
    if (rest < 0) return 0;
    int32_t body_size = (int32_t)get32(at + head - 4);
    if (body_size < 0 || body_size > rest) return 0;
    rest -= body_size;
    const uint8_t *after_body = at + head + body_size;
    Py_ssize_t topic_size = magic == MAGIC_V2 ? get16(after_body) : after_body[0];
    if (topic_size > (magic == MAGIC_V2 ? TEXT_SIZE_MAX : TOPIC_SIZE_MAX_V1)) return 0;
    if (topic_size > rest) return 0;
    rest -= topic_size;
    record->topic = after_body + topic_length_size;
    if (rest > TEXT_SIZE_MAX || get16(record->topic + topic_size) != rest) return 0;
    record->body = at + head;
    record->body_size = body_size;
    record->topic_size = topic_size;
    record->texts = record->topic + topic_size + 2;
    record->texts_size = rest;
    record->size = size;
    record->flags = flags;
    record->queue_id = (int32_t)get32(at + 12);
    record->queue_offset = (int64_t)get64(at + 20);
    record->store_ms = (int64_t)get64(at + 56 + moved);
    return 1;
}

/* Return the CRC32 of some bytes, by the function that the caller gave; -1 with an exception. */
static int64_t crc_of(PyObject *crc32, const uint8_t *at, Py_ssize_t size) {
    PyObject *view = PyMemoryView_FromMemory((char *)at, size, PyBUF_READ);
    if (view == NULL) return -1;
    PyObject *found = PyObject_CallOneArg(crc32, view);
    Py_DECREF(view);
    if (found == NULL) return -1;
    unsigned long crc = PyLong_AsUnsignedLong(found);
    Py_DECREF(found);
    if (crc == (unsigned long)-1 && PyErr_Occurred()) return -1;
    return (int64_t)(crc & CRC_MASK);
}

static int are_digits(const uint8_t *text, int size) {
    for (int i = 0; i < size; i++)
        if (text[i] < '0' || text[i] > '9') return 0;
    return 1;
}

/* Whether the properties are shorter than a ``__CRC32#``, and begin with its name. */
static int is_prop_crc_cut(const Record *record) {
    return record->texts_size < PROP_CRC_SIZE && record->texts_size >= PROP_CRC_NAME_SIZE &&
           memcmp(record->texts, "__CRC32#\x01", PROP_CRC_NAME_SIZE) == 0;
}

/* Compare the checksums; 1 if they fit, 0 if not, -1 with an exception. */
static int fits_checksums(PyObject *crc32, const uint8_t *at, const Record *record) {
    int64_t crc = crc_of(crc32, record->body, record->body_size);
    if (crc < 0) return -1;
    if (crc != get32(at + 8)) return 0;
    if (record->texts_size < PROP_CRC_SIZE) return !is_prop_crc_cut(record);
    const uint8_t *stored = at + record->size - PROP_CRC_SIZE;
    if (memcmp(stored, "__CR", 4) != 0 && memcmp(stored + 4, "C32#\x01", 5) != 0) return 1;
    if (memcmp(stored, "__CRC32#\x01", 9) != 0) /* a damaged name, if the rest has its shape */
        return !are_digits(stored + 9, 10) || stored[19] != 2;
    if (stored[19] != 2) return 0;
    crc = crc_of(crc32, at, record->size - PROP_CRC_SIZE);
    if (crc < 0) return -1;
    for (int i = 9; i < 19; i++, crc /= 10) /* the least significant digit first */
        if (stored[i] != '0' + crc % 10) return 0;
    return 1;
}

/* Return the queue of a record, perhaps a new one, whose offsets are then the record's. */
static Queue *queue_of(Scan *scan, const Record *record) {
    uint32_t hash = hash_ascii(record->topic, record->topic_size, (uint32_t)record->queue_id);
    for (uint32_t bucket = (hash * 0x9E3779B1u) >> 21;; bucket = (bucket + 1) % BUCKETS) {
        int number = scan->buckets[bucket] - 1;
        if (number < 0) {
            Queue *queue = &scan->queues[scan->queue_count++];
            scan->buckets[bucket] = (int16_t)scan->queue_count;
            *queue = (Queue){{record->topic, record->topic_size}, record->queue_id,
                             record->queue_offset, record->queue_offset,
                             record->queue_offset, -1, -1, 0, 0};
            queue->topic_hash = 31 * hash_ascii(record->topic, record->topic_size, 0) + '#';
            return queue;
        }
        Queue *queue = &scan->queues[number];
        if (queue->queue_id == record->queue_id && queue->topic.size == record->topic_size &&
            memcmp(queue->topic.at, record->topic, (size_t)record->topic_size) == 0)
            return queue;
    }
}

enum { TAGS, UNIQ_KEY, KEYS, TEXTS };
static const Text NAMES[TEXTS] = {
    {(const uint8_t *)"TAGS", 4}, {(const uint8_t *)"UNIQ_KEY", 8}, {(const uint8_t *)"KEYS", 4}};

/* Find the values that queues and index need, the last one of each name. */
static void find_texts(const Record *record, Text found[TEXTS]) {
    memset(found, 0, TEXTS * sizeof(Text));
    const uint8_t *at = record->texts, *end = at + record->texts_size;
    while (at < end) {
        const uint8_t *pair_end = memchr(at, 2, (size_t)(end - at));
        if (pair_end == NULL) pair_end = end;
        const uint8_t *mark = memchr(at, 1, (size_t)(pair_end - at));
        if (mark != NULL && mark + 1 < pair_end)
            for (int i = 0; i < TEXTS; i++)
                if (mark - at == NAMES[i].size &&
                    memcmp(at, NAMES[i].at, (size_t)NAMES[i].size) == 0)
                    found[i] = (Text){mark + 1, pair_end - mark - 1};
        at = pair_end + 1;
    }
}

static int add_key(Scan *scan, uint32_t hash, int64_t physic_offset, int64_t store_ms) {
    if (scan->keys_size + KEY_SIZE > scan->keys_room) {
        Py_ssize_t room = scan->keys_room ? 2 * scan->keys_room : 4096;
        uint8_t *keys = PyMem_Realloc(scan->keys, (size_t)room);
        if (keys == NULL) {
            PyErr_NoMemory();
            return 0;
        }
        scan->keys = keys;
        scan->keys_room = room;
    }
    int64_t value = (int32_t)hash; /* as key_hash: the absolute value, 0 for the least number */
    if (value < 0) value = value == INT32_MIN ? 0 : -value;
    memcpy(scan->keys + scan->keys_size, &value, 8);
    memcpy(scan->keys + scan->keys_size + 8, &physic_offset, 8);
    memcpy(scan->keys + scan->keys_size + 16, &store_ms, 8);
    scan->keys_size += KEY_SIZE;
    return 1;
}

/* Add UNIQ_KEY, then the parts of KEYS between spaces. */
static int add_keys(Scan *scan, const Queue *queue, const Text texts[TEXTS], int64_t physic_offset,
                    int64_t store_ms) {
    const Text *uniq = &texts[UNIQ_KEY];
    if (uniq->size && !add_key(scan, hash_ascii(uniq->at, uniq->size, queue->topic_hash),
                               physic_offset, store_ms))
        return 0;
    const uint8_t *at = texts[KEYS].at, *end = at + texts[KEYS].size;
    while (at < end) {
        const uint8_t *key_end = memchr(at, ' ', (size_t)(end - at));
        if (key_end == NULL) key_end = end;
        if (key_end > at && !add_key(scan, hash_ascii(at, key_end - at, queue->topic_hash),
                                     physic_offset, store_ms))
            return 0;
        at = key_end + 1;
    }
    return 1;
}

static void add_unit(Scan *scan, Queue *queue, int64_t physic_offset, const Record *record,
                     int64_t tags_code) {
    int number = scan->unit_count++;
    Unit *unit = &scan->units[number];
    put64(unit->bytes, (uint64_t)physic_offset);
    put32(unit->bytes + 8, (uint32_t)record->size);
    put64(unit->bytes + 12, (uint64_t)tags_code);
    unit->next = -1;
    if (queue->count++)
        scan->units[queue->last].next = number;
    else
        queue->first = number;
    queue->last = number;
    queue->last_queue_offset = record->queue_offset;
}

/* Whether a record is the first one of its queue, or the next; after INT64_MAX there is no next. */
static int continues(const Queue *queue, const Record *record) {
    return queue->count == 0 || (queue->last_queue_offset < INT64_MAX &&
                                 record->queue_offset == queue->last_queue_offset + 1);
}

/* Return [(topic, queue id, first queue offset, units)]. */
static PyObject *queues_of(const Scan *scan) {
    PyObject *queues = PyList_New(scan->queue_count);
    for (int i = 0; queues != NULL && i < scan->queue_count; i++) {
        const Queue *queue = &scan->queues[i];
        PyObject *units = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)queue->count * UNIT_SIZE);
        if (units != NULL) {
            uint8_t *to = (uint8_t *)PyBytes_AS_STRING(units);
            for (int n = queue->first; n >= 0; n = scan->units[n].next, to += UNIT_SIZE)
                memcpy(to, scan->units[n].bytes, UNIT_SIZE);
        }
        PyObject *topic = PyUnicode_DecodeASCII((const char *)queue->topic.at,
                                                queue->topic.size, NULL);
        PyObject *item = NULL; /* "N" takes the references, also when it fails */
        if (units != NULL && topic != NULL)
            item = Py_BuildValue("(NiLN)", topic, queue->queue_id,
                                 (long long)queue->first_queue_offset, units);
        else {
            Py_XDECREF(topic);
            Py_XDECREF(units);
        }
        if (item == NULL)
            Py_CLEAR(queues);
        else
            PyList_SET_ITEM(queues, i, item);
    }
    return queues;
}

static PyObject *scan_records(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer buffer, schedule_topic;
    Py_ssize_t position;
    long long physic_offset, file_size;
    int count_max;
    PyObject *crc32, *result = NULL;
    if (!PyArg_ParseTuple(args, "y*nLLiy*O", &buffer, &position, &physic_offset, &file_size,
                          &count_max, &schedule_topic, &crc32))
        return NULL;
    Scan *scan = NULL;
    if (position < 0 || physic_offset < 0 || file_size <= 0) {
        PyErr_SetString(PyExc_ValueError, "a position, an offset or a file size is out of range");
        goto done;
    }
    if (count_max > RECORDS_MAX) count_max = RECORDS_MAX;
    scan = PyMem_Malloc(sizeof(Scan)); /* queues and units are set before they are read */
    if (scan == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    memset(scan->buckets, 0, sizeof scan->buckets);
    scan->queue_count = scan->unit_count = 0;
    scan->keys = NULL;
    scan->keys_size = scan->keys_room = 0;
    int64_t last_offset = -1, store_ms = 0;
    while (scan->unit_count < count_max && position < buffer.len) {
        const uint8_t *at = (const uint8_t *)buffer.buf + position;
        int64_t available = file_size - physic_offset % file_size;
        Record record;
        Text texts[TEXTS];
        if (!read_record(at, buffer.len - position, available, physic_offset,
                         TRANSACTION_TYPE_MASK | INNER_BATCH_FLAG, &record))
            break;
        if (record.topic_size == schedule_topic.len &&
            memcmp(record.topic, schedule_topic.buf, (size_t)schedule_topic.len) == 0)
            break;
        if (!is_ascii(record.topic, record.topic_size)) break;
        if (!is_ascii(record.texts, record.texts_size)) break;
        find_texts(&record, texts);
        if (crc32 != Py_None) {
            int fits = fits_checksums(crc32, at, &record);
            if (fits < 0) goto done;
            if (!fits) break;
        }
        Queue *queue = queue_of(scan, &record);
        if (!continues(queue, &record)) break;
        if (!add_keys(scan, queue, texts, physic_offset, record.store_ms)) goto done;
        const Text *tags = &texts[TAGS];
        add_unit(scan, queue, physic_offset, &record,
                 (int32_t)hash_ascii(tags->at, tags->size, 0));
        last_offset = physic_offset;
        store_ms = record.store_ms;
        position += record.size;
        if (physic_offset > INT64_MAX - record.size) break; /* no record begins after it */
        physic_offset += record.size;
    }
    PyObject *queues = queues_of(scan);
    if (queues != NULL)
        result = Py_BuildValue("(niLLNy#)", position, scan->unit_count, (long long)last_offset,
                               (long long)store_ms, queues,
                               scan->keys ? (char *)scan->keys : "", scan->keys_size);
done:
    if (scan != NULL) PyMem_Free(scan->keys);
    PyMem_Free(scan);
    PyBuffer_Release(&buffer);
    PyBuffer_Release(&schedule_topic);
    return result;
}

/* -- encode_record ----------------------------------------------------------------------------- */

enum { FIXED_HEAD_SIZE = 36 }; /* until sysFlag */

/* Return the bytes of properties as a record holds them; -1 if none can. */
static Py_ssize_t properties_size(PyObject *properties) {
    PyObject *texts[2];
    Py_ssize_t size = 0;
    for (Py_ssize_t at = 0; PyDict_Next(properties, &at, &texts[0], &texts[1]);) {
        for (int i = 0; i < 2; i++) {
            Py_ssize_t text_size;
            if (!PyUnicode_CheckExact(texts[i])) return -1; /* another class may print itself */
            const char *text = PyUnicode_AsUTF8AndSize(texts[i], &text_size);
            if (text == NULL) { /* a lone surrogate */
                PyErr_Clear();
                return -1;
            }
            for (Py_ssize_t n = 0; n < text_size; n++)
                if ((uint8_t)text[n] <= 2) return -1; /* a separator or a NUL */
            if (i == 0 && strcmp(text, "__CRC32#") == 0) return -1;
            size += text_size + 1;
            if (size > TEXT_SIZE_MAX) return -1;
        }
    }
    return size;
}

static void put_properties(uint8_t *to, PyObject *properties) {
    PyObject *texts[2];
    for (Py_ssize_t at = 0; PyDict_Next(properties, &at, &texts[0], &texts[1]);)
        for (int i = 0; i < 2; i++) {
            Py_ssize_t size = 0;
            const char *text = PyUnicode_AsUTF8AndSize(texts[i], &size);
            memcpy(to, text, (size_t)size);
            to += size;
            *to++ = (uint8_t)(i + 1);
        }
}

/* Return a number of 32 bits; INT64_MIN for any other object. */
static int64_t int32_of(PyObject *number) {
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (value == -1 && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear(); /* it is not an integer */
        return INT64_MIN;
    }
    if (overflow || value < INT32_MIN || value > INT32_MAX) return INT64_MIN;
    return value;
}

/* Write ``__CRC32#``, which covers all bytes of the record before it; false with an exception. */
static int put_prop_crc(PyObject *crc32, const uint8_t *record, uint8_t *to) {
    int64_t crc = crc_of(crc32, record, to - record);
    if (crc < 0) return 0;
    memcpy(to, "__CRC32#\x01", 9);
    for (int i = 9; i < 19; i++, crc /= 10) to[i] = (uint8_t)('0' + crc % 10);
    to[19] = 2;
    return 1;
}

/* Write a message's record into a log's file at ``position``; return its size.

   Return 0, with nothing written, if it does not end before ``end``, if it is larger than
   ``size_max``, or if a value does not fit its field or is of an unusual type. */
static PyObject *encode_record(PyObject *Py_UNUSED(module), PyObject *const *args,
                               Py_ssize_t count) {
    Py_buffer file, body;
    if (count != 15 || !PyBytes_Check(args[9]) || !PyBytes_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError,
                        "encode_record takes 15 arguments; topic field and middle are bytes");
        return NULL;
    }
    PyObject *topic_field = args[3], *middle = args[9], *properties = args[11], *crc32 = args[12];
    Py_ssize_t prop_crc_size = args[13] == Py_True ? PROP_CRC_SIZE : 0;
    Py_ssize_t position = PyLong_AsSsize_t(args[1]), end = PyLong_AsSsize_t(args[2]);
    Py_ssize_t size_max = PyLong_AsSsize_t(args[14]);
    int64_t magic = int32_of(args[4]), queue_id = int32_of(args[5]), flag = int32_of(args[6]);
    int64_t queue_offset = PyLong_AsLongLong(args[7]), physic_offset = PyLong_AsLongLong(args[8]);
    if (PyErr_Occurred()) return NULL;
    if (position > end || queue_id == INT64_MIN || flag == INT64_MIN) return PyLong_FromLong(0);
    PyObject *crc = PyObject_CallOneArg(crc32, args[10]);
    if (crc == NULL) return NULL;
    uint32_t body_crc = (uint32_t)(PyLong_AsUnsignedLongMask(crc) & CRC_MASK);
    Py_DECREF(crc);
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &file, PyBUF_WRITABLE) < 0) return NULL;
    if (PyObject_GetBuffer(args[10], &body, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&file);
        return NULL;
    }
    /* Until the properties are copied no code in Python runs, so they keep their size.  crc32 may
       let another thread run after that; it cannot resize the body, whose buffer is held. */
    Py_ssize_t texts_size = 0;
    if (properties != Py_None)
        texts_size = PyDict_CheckExact(properties) ? properties_size(properties) : -1;
    Py_ssize_t middle_size = PyBytes_GET_SIZE(middle), topic_size = PyBytes_GET_SIZE(topic_field);
    Py_ssize_t around = FIXED_HEAD_SIZE + middle_size + 4 + topic_size + 2;
    around += texts_size + prop_crc_size;
    Py_ssize_t room = end - position < size_max ? end - position : size_max, size = 0;
    if (position < 0 || end > file.len) {
        PyErr_SetString(PyExc_ValueError, "a position is outside the file");
        size = -1;
    } else if (texts_size >= 0 && texts_size + prop_crc_size <= TEXT_SIZE_MAX &&
               body.len <= INT32_MAX - around && body.len <= room - around) {
        size = around + body.len;
        uint8_t *start = (uint8_t *)file.buf + position, *at = start + FIXED_HEAD_SIZE;
        put32(start + 4, (uint32_t)magic);
        put32(start + 8, body_crc);
        put32(start + 12, (uint32_t)queue_id);
        put32(start + 16, (uint32_t)flag);
        put64(start + 20, (uint64_t)queue_offset);
        put64(start + 28, (uint64_t)physic_offset);
        memcpy(at, PyBytes_AS_STRING(middle), (size_t)middle_size);
        at += middle_size;
        put32(at, (uint32_t)body.len);
        memmove(at + 4, body.buf, (size_t)body.len); /* it may be of the same file */
        at += 4 + body.len;
        memcpy(at, PyBytes_AS_STRING(topic_field), (size_t)topic_size);
        at += topic_size;
        at[0] = (uint8_t)((texts_size + prop_crc_size) >> 8);
        at[1] = (uint8_t)(texts_size + prop_crc_size);
        at += 2;
        if (texts_size) put_properties(at, properties);
        put32(start, (uint32_t)size);
        if (prop_crc_size && !put_prop_crc(crc32, start, at + texts_size)) size = -1;
    }
    PyBuffer_Release(&body);
    PyBuffer_Release(&file);
    return size < 0 ? NULL : PyLong_FromSsize_t(size);
}

/* -- walk_records ------------------------------------------------------------------------------ */

/* As fits_checksums, but ``__CRC32#`` stands for the body's, which it covers; and without one the
   record must not end in a 0 if it ``may_be_torn``. */
static int is_intact(PyObject *crc32, const uint8_t *at, const Record *record, int may_be_torn) {
    const uint8_t *end = at + record->size, *stored = end - PROP_CRC_SIZE;
    if (record->texts_size >= PROP_CRC_SIZE && memcmp(stored, "__CRC32#\x01", 9) == 0) {
        int64_t crc = crc_of(crc32, at, stored - at);
        if (crc < 0) return -1;
        for (int i = 9; i < 19; i++, crc /= 10)
            if (stored[i] != '0' + crc % 10) return 0;
        return stored[19] == 2;
    }
    if (is_prop_crc_cut(record)) return 0;
    /* half of its name may be damaged */
    if (memcmp(stored, "__CR", 4) == 0 || memcmp(stored + 4, "C32#\x01", 5) == 0) return 0;
    const uint8_t *last = record->texts_size ? end - 1 : record->texts - 3;
    if (may_be_torn && *last == 0) return 0;
    int64_t crc = crc_of(crc32, record->body, record->body_size);
    return crc < 0 ? -1 : crc == get32(at + 8);
}

/* Return [(topic, queue id, next queue offset)]. */
static PyObject *next_offsets_of(const Scan *scan) {
    PyObject *queues = PyList_New(scan->queue_count);
    for (int i = 0; queues != NULL && i < scan->queue_count; i++) {
        const Queue *queue = &scan->queues[i];
        PyObject *item = Py_BuildValue("(y#iL)", (const char *)queue->topic.at, queue->topic.size,
                                       queue->queue_id, (long long)queue->next_queue_offset);
        if (item == NULL)
            Py_CLEAR(queues);
        else
            PyList_SET_ITEM(queues, i, item);
    }
    return queues;
}

static PyObject *walk_records(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer buffer;
    Py_ssize_t position;
    long long physic_offset, torn_from;
    int has_queues;
    PyObject *crc32, *result = NULL;
    if (!PyArg_ParseTuple(args, "y*nLLpO", &buffer, &position, &physic_offset, &torn_from,
                          &has_queues, &crc32))
        return NULL;
    Scan *scan = NULL;
    if (position < 0 || physic_offset < 0 || physic_offset > INT64_MAX - buffer.len) {
        PyErr_SetString(PyExc_ValueError, "a position or an offset is out of range");
        goto done;
    }
    scan = PyMem_Malloc(sizeof(Scan)); /* queues are set before they are read */
    if (scan == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    memset(scan->buckets, 0, sizeof scan->buckets);
    scan->queue_count = 0;
    Py_ssize_t last = -1;
    int count = 0;
    for (; count < RECORDS_MAX && position < buffer.len; count++) {
        const uint8_t *at = (const uint8_t *)buffer.buf + position;
        Record record;
        if (!read_record(at, buffer.len - position, INT64_MAX, physic_offset, INNER_BATCH_FLAG,
                         &record))
            break;
        if (crc32 != Py_None) {
            int fits = is_intact(crc32, at, &record, physic_offset >= torn_from);
            if (fits < 0) goto done;
            if (!fits) break;
        }
        if (has_queues && !(record.flags & PREPARED_FLAG) && record.queue_offset < INT64_MAX) {
            Queue *queue = queue_of(scan, &record);
            if (queue->next_queue_offset <= record.queue_offset)
                queue->next_queue_offset = record.queue_offset + 1;
        }
        last = position;
        position += record.size;
        physic_offset += record.size;
    }
    PyObject *queues = next_offsets_of(scan);
    if (queues != NULL) result = Py_BuildValue("(nniN)", position, last, count, queues);
done:
    PyMem_Free(scan);
    PyBuffer_Release(&buffer);
    return result;
}

/* -- fill_index -------------------------------------------------------------------------------- */

enum { INDEX_ENTRY_SIZE = 20, TIME_DIFF_MAX = INT32_MAX };

/* Append the entries of packed keys to an index file's tail, and set the slots.

   The first entry has ``number``.  Return (how many slots were free, the file's begin time).  On an
   error nothing has changed. */
static PyObject *fill_index(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer numbers, dirty, keys;
    int page_shift, number;
    long long begin_ms;
    PyObject *tail, *result = NULL;
    if (!PyArg_ParseTuple(args, "w*w*iiLy*O!", &numbers, &dirty, &page_shift, &number, &begin_ms,
                          &keys, &PyByteArray_Type, &tail))
        return NULL;
    Py_ssize_t slots = numbers.len / 4, count = keys.len / KEY_SIZE;
    Py_ssize_t old = PyByteArray_GET_SIZE(tail);
    if (keys.len % KEY_SIZE || slots <= 0 || page_shift < 0 || page_shift > 30 || number < 1 ||
        count > INT32_MAX - number || dirty.len <= (slots - 1) >> page_shift) {
        PyErr_SetString(PyExc_ValueError, "keys, slots or numbers do not fit each other");
        goto done;
    }
    const uint8_t *key = keys.buf;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t hash;
        memcpy(&hash, key + i * KEY_SIZE, 8);
        if (hash < 0 || hash > INT32_MAX) {
            PyErr_SetString(PyExc_ValueError, "not the hash of a key");
            goto done;
        }
    }
    if (PyByteArray_Resize(tail, old + count * INDEX_ENTRY_SIZE) < 0) goto done;
    uint8_t *to = (uint8_t *)PyByteArray_AS_STRING(tail) + old;
    int32_t *newest = numbers.buf;
    Py_ssize_t free_slots = 0;
    for (Py_ssize_t i = 0; i < count; i++, number++, key += KEY_SIZE, to += INDEX_ENTRY_SIZE) {
        int64_t hash, physic_offset, store_ms, seconds = 0;
        memcpy(&hash, key, 8);
        memcpy(&physic_offset, key + 8, 8);
        memcpy(&store_ms, key + 16, 8);
        if (begin_ms > 0 && store_ms > begin_ms) {
            seconds = (store_ms - begin_ms) / 1000;
            if (seconds > TIME_DIFF_MAX) seconds = TIME_DIFF_MAX;
        }
        Py_ssize_t slot = (Py_ssize_t)(hash % slots);
        int32_t previous = newest[slot];
        if (previous < 0 || previous >= number) previous = 0; /* left by a RocketMQ's kill */
        if (previous == 0) free_slots++;
        put32(to, (uint32_t)hash);
        put64(to + 4, (uint64_t)physic_offset);
        put32(to + 12, (uint32_t)seconds);
        put32(to + 16, (uint32_t)previous);
        newest[slot] = number;
        ((uint8_t *)dirty.buf)[slot >> page_shift] = 1;
        if (number == 1) begin_ms = store_ms;
    }
    result = Py_BuildValue("(nL)", free_slots, begin_ms);
done:
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&dirty);
    PyBuffer_Release(&keys);
    return result;
}

/* -- names of open files, and syncs ----------------------------------------------------------- */

enum {
    REQUEST_SIZE_MAX = 4096, /* PIPE_BUF: a packet of a pipe is not larger */
    CHECK_SIZE_MIN = 17,     /* device, inode, NUL */
    IS_LOST = 1 << 16,       /* in a result, above every errno */
};

/* Whether a name leads to another file than the one that was open: 0, or IS_LOST.
   ``check`` is a name_check of hastore/env/name_check.py; an empty one is of no name. */
static int lost_name(const char *check, size_t size) {
    if (size < CHECK_SIZE_MIN || check[size - 1] != 0) return 0;
    uint64_t device, inode;
    struct stat found;
    memcpy(&device, check, sizeof device);
    memcpy(&inode, check + sizeof device, sizeof inode);
    if (stat(check + sizeof device + sizeof inode, &found) != 0)
        return errno == EACCES || errno == EINTR || errno == ENOMEM ? 0 : IS_LOST;
    return found.st_dev == device && found.st_ino == inode ? 0 : IS_LOST;
}

/* first_lost_name(checks) -> int

   The index of the first check in the tuple whose name leads to another file, -1 without one. */
static PyObject *first_lost_name(PyObject *Py_UNUSED(module), PyObject *checks) {
    if (!PyTuple_Check(checks)) {
        PyErr_SetString(PyExc_TypeError, "checks is not a tuple");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(checks), lost = -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!PyBytes_Check(PyTuple_GET_ITEM(checks, i))) {
            PyErr_SetString(PyExc_TypeError, "a check is not bytes");
            return NULL;
        }
    }
    Py_BEGIN_ALLOW_THREADS /* the caller's tuple keeps the bytes, which nobody can change */
    for (Py_ssize_t i = 0; i < count && lost < 0; i++) {
        PyObject *check = PyTuple_GET_ITEM(checks, i);
        if (lost_name(PyBytes_AS_STRING(check), (size_t)PyBytes_GET_SIZE(check))) lost = i;
    }
    Py_END_ALLOW_THREADS
    return PyLong_FromSsize_t(lost);
}

typedef struct {
    int32_t descriptor;
    uint32_t check_size; /* of the name_check that follows */
} SyncHead;

/* Sync a request's files in order, and check their names.  Returns 1, or for the first that fails
   1 + its errno or IS_LOST + (its index << 32). */
static uint64_t sync_files(const char *request, size_t size) {
    uint64_t index = 0;
    for (size_t at = 0; size - at >= sizeof(SyncHead); index++) {
        SyncHead head;
        memcpy(&head, request + at, sizeof head);
        at += sizeof head;
        int failed;
        do {
            failed = fdatasync(head.descriptor) ? errno : 0;
        } while (failed == EINTR);
        if (!failed && head.check_size <= size - at)
            failed = lost_name(request + at, head.check_size);
        if (failed) return 1 + (uint64_t)failed + (index << 32);
        if (head.check_size > size - at) break;
        at += head.check_size;
    }
    return 1;
}

/* serve_syncs(requests, results) -> bytes

   A request is a packet of the pipe ``requests``: a SyncHead and a name_check for each file to
   sync, in order.  Its result (sync_files) is added to the eventfd ``results``.  Returns the first
   request that begins with a negative number.  Runs without the GIL. */
static PyObject *serve_syncs(PyObject *Py_UNUSED(module), PyObject *args) {
    int requests, results;
    if (!PyArg_ParseTuple(args, "ii:serve_syncs", &requests, &results)) return NULL;
    char request[REQUEST_SIZE_MAX];
    ssize_t size;
    int failed = 0;
    Py_BEGIN_ALLOW_THREADS
    for (;;) {
        do {
            size = read(requests, request, sizeof request);
        } while (size < 0 && errno == EINTR);
        failed = size < 0;
        int32_t first = -1;
        if (size >= (ssize_t)sizeof first) memcpy(&first, request, sizeof first);
        if (first < 0) break;
        uint64_t result = sync_files(request, (size_t)size);
        failed = write(results, &result, sizeof result) != sizeof result;
        if (failed) break;
    }
    Py_END_ALLOW_THREADS
    if (failed) return PyErr_SetFromErrno(PyExc_OSError);
    return PyBytes_FromStringAndSize(request, size);
}

/* -- the module -------------------------------------------------------------------------------- */

static PyMethodDef METHODS[] = {
    {"encode_record", (PyCFunction)(void (*)(void))encode_record, METH_FASTCALL,
     "See hastore.store.commit_log."},
    {"scan_records", scan_records, METH_VARARGS, "See hastore.dispatch.record_scan."},
    {"walk_records", walk_records, METH_VARARGS, "See hastore.store.recovery.record_walk."},
    {"fill_index", fill_index, METH_VARARGS, "See hastore.store.index.file."},
    {"java_hash", java_hash, METH_VARARGS, "See hastore.store.record.java_hash."},
    {"first_lost_name", first_lost_name, METH_O, "See hastore.env.name_check."},
    {"serve_syncs", serve_syncs, METH_VARARGS, "See hastore.env.sync_thread."},
    {"take_sends", take_sends, METH_VARARGS, "See hastore.wire.usual_frames."},
    {NULL, NULL, 0, NULL},
};

static int begin(PyObject *module) {
    return PyModule_AddIntConstant(module, "INTERFACE", 8); /* as in hastore/native/in_use.py */
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, begin}, {0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_native", "What a node does most often, in C; see hastore.native.", 0,
    METHODS, SLOTS, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&MODULE); }
