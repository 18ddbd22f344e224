/* The frames of the client port that come once a message, in C; twin: hastore/wire/usual_frames.py.

   take_sends     requests to send one message, many at a time
   take_entries   the messages of a batch
   take_replies   successful replies to them
   ok_reply       one such reply
   send_head      one such request, without its body

   Only usual frames are handled: complete, ASCII, each field at most once, numbers of at most 18
   digits, ...  Anything else is left to the caller, who reads or writes it in Python, so no rule for
   unusual and damaged frames is here.  All input is untrusted: every length is compared with what
   is left before it is used.  The layouts are those of hastore/wire: remoting_command, json_header,
   rocketmq_header, send_message. */

#define PY_SSIZE_T_CLEAN
#include "remoting.h"
#include "numbers.h"
#include <stdint.h>
#include <string.h>

enum {
    PREFIX_SIZE = 8, /* frame size, header word */
    HEADER_SIZE_MAX = 1024 * 1024,
    BINARY_HEAD_SIZE = 17, /* up to and including the remark's size */
    DIGITS_MAX = 18,
    TEXT_SIZE_MAX = 65536, /* of a request's properties */
    FLAG_RESPONSE = 1,
    FLAG_ONE_WAY = 2,
    SEND_MESSAGE = 10,
    SEND_MESSAGE_V2 = 310,
    JSON = 0,
    ROCKETMQ = 1,
    LANGUAGE_NUMBER = 3, /* PYTHON */
    VERSION = 409,
};

/* -- headers ----------------------------------------------------------------------------------- */

typedef enum { MISSING, NUMBER, STRING, ESCAPED } Kind; /* ESCAPED: a string with backslashes */

typedef struct {
    const uint8_t *at;
    Py_ssize_t size;
    Kind kind;
} Value;

typedef struct {
    const char *name;
    Py_ssize_t size;
} Name;

#define NAME(text) {text, sizeof text - 1}

typedef struct {
    int64_t code, opaque, flag;
    int has_remark;
} Head;

typedef struct {
    const uint8_t *at, *end;
} Cursor;

static int is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

/* Read a number, or a text that is one; false if it is neither, or has many digits. */
static int to_integer(const Value *value, int64_t *number) {
    if (value->kind != NUMBER && value->kind != STRING) return 0;
    const uint8_t *at = value->at, *end = at + value->size;
    int is_negative = at < end && *at == '-';
    if (is_negative) at++;
    if (end - at < 1 || end - at > DIGITS_MAX) return 0;
    int64_t found = 0;
    for (; at < end; at++) {
        if (!is_digit(*at)) return 0;
        found = 10 * found + (*at - '0');
    }
    *number = is_negative ? -found : found;
    return 1;
}

static int to_int32(const Value *value, int64_t *number) {
    return to_integer(value, number) && *number >= -INT32_MAX && *number <= INT32_MAX;
}

static int to_natural32(const Value *value, int64_t *number) {
    return to_int32(value, number) && *number >= 0;
}

static int is_text(const Value *value, const char *text) {
    return value->size == (Py_ssize_t)strlen(text) &&
           memcmp(value->at, text, (size_t)value->size) == 0;
}

static int find_name(const Name *names, int count, const Value *key) {
    for (int i = 0; i < count; i++)
        if (names[i].size == key->size &&
            memcmp(names[i].name, key->at, (size_t)key->size) == 0)
            return i;
    return -1;
}

/* Keep the value of a known name; false for a second one. */
static int keep(const Name *names, int count, const Value *key, const Value *value, Value *found) {
    int number = find_name(names, count, key);
    if (number < 0) return 1;
    if (found[number].kind != MISSING) return 0;
    found[number] = *value;
    return 1;
}

static int take_byte(Cursor *in, uint8_t byte) {
    if (in->at >= in->end || *in->at != byte) return 0;
    in->at++;
    return 1;
}

static int is_hex(uint8_t byte) {
    return is_digit(byte) || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
}

/* Read a string of ASCII, also escaped; its value is what is between the quotes. */
static int json_string(Cursor *in, Value *value) {
    if (!take_byte(in, '"')) return 0;
    const uint8_t *at = in->at;
    value->at = at;
    value->kind = STRING;
    for (; at < in->end && *at != '"'; at++) {
        if (*at < 0x20 || *at >= 0x80) return 0;
        if (*at != '\\') continue;
        value->kind = ESCAPED;
        if (++at == in->end) return 0;
        if (*at == 'u') {
            if (in->end - at < 5 || at[1] != '0' || at[2] != '0' || at[3] < '0' || at[3] > '7' ||
                !is_hex(at[4]))
                return 0;
            at += 4;
        } else if (*at == 0 || strchr("\"\\/bfnrt", *at) == NULL) {
            return 0;
        }
    }
    if (at >= in->end) return 0;
    value->size = at - value->at;
    in->at = at + 1;
    return 1;
}

static int json_number(Cursor *in, Value *value) {
    const uint8_t *at = in->at;
    value->at = at;
    value->kind = NUMBER;
    if (at < in->end && *at == '-') at++;
    if (at >= in->end || !is_digit(*at)) return 0;
    int is_zero = *at == '0';
    const uint8_t *digits = at;
    while (at < in->end && is_digit(*at)) at++;
    if (at - digits > DIGITS_MAX || (is_zero && at - digits > 1)) return 0;
    value->size = at - value->at;
    in->at = at; /* a fraction or an exponent is no comma, and ends the reading */
    return 1;
}

static int json_value(Cursor *in, Value *value) {
    if (in->at < in->end && *in->at == '"') return json_string(in, value);
    return json_number(in, value);
}

static int json_key(Cursor *in, Value *key) {
    return json_string(in, key) && key->kind == STRING && take_byte(in, ':');
}

static int json_fields(Cursor *in, const Name *names, int count, Value *found) {
    if (!take_byte(in, '{')) return 0;
    if (take_byte(in, '}')) return 1;
    do {
        Value key, value;
        if (!json_key(in, &key) || !json_value(in, &value)) return 0;
        if (!keep(names, count, &key, &value, found)) return 0;
    } while (take_byte(in, ','));
    return take_byte(in, '}');
}

static int json_header(const uint8_t *at, Py_ssize_t size, const Name *names, int count,
                       Head *head, Value *found) {
    enum { CODE, FLAG, OPAQUE, HEADER_VERSION, LANGUAGE, REMARK, TYPE, EXT_FIELDS, PARTS };
    static const Name PART[PARTS] = {
        NAME("code"),     NAME("flag"),   NAME("opaque"),
        NAME("version"),  NAME("language"), NAME("remark"),
        NAME("serializeTypeCurrentRPC"), NAME("extFields"),
    };
    Value parts[PARTS];
    memset(parts, 0, sizeof parts);
    Cursor in = {at, at + size};
    if (!take_byte(&in, '{')) return 0;
    do {
        Value key;
        if (!json_key(&in, &key)) return 0;
        int part = find_name(PART, PARTS, &key);
        if (part < 0 || parts[part].kind != MISSING) return 0;
        if (part == EXT_FIELDS) {
            parts[part].kind = STRING;
            if (!json_fields(&in, names, count, found)) return 0;
        } else if (!json_value(&in, &parts[part])) {
            return 0;
        }
    } while (take_byte(&in, ','));
    if (!take_byte(&in, '}')) return 0;
    for (; in.at < in.end; in.at++)
        if (*in.at != ' ' && *in.at != '\n' && *in.at != '\r' && *in.at != '\t') return 0;
    int64_t version;
    head->flag = 0;
    head->has_remark = parts[REMARK].kind != MISSING;
    return parts[EXT_FIELDS].kind != MISSING && to_int32(&parts[CODE], &head->code) &&
           to_int32(&parts[OPAQUE], &head->opaque) &&
           (parts[FLAG].kind == MISSING || to_int32(&parts[FLAG], &head->flag)) &&
           (parts[HEADER_VERSION].kind == MISSING || to_int32(&parts[HEADER_VERSION], &version));
}

static int binary_header(const uint8_t *at, Py_ssize_t size, const Name *names, int count,
                         Head *head, Value *found) {
    if (size < BINARY_HEAD_SIZE + 4 || get32(at + 13) != 0) return 0; /* 13: the remark's size */
    head->code = (int16_t)(at[0] << 8 | at[1]);
    head->opaque = (int32_t)get32(at + 5);
    head->flag = (int32_t)get32(at + 9);
    head->has_remark = 0;
    if (get32(at + BINARY_HEAD_SIZE) != (uint64_t)(size - BINARY_HEAD_SIZE - 4)) return 0;
    const uint8_t *end = at + size;
    at += BINARY_HEAD_SIZE + 4;
    while (at < end) {
        if (end - at < 2) return 0;
        Py_ssize_t key_size = at[0] << 8 | at[1];
        at += 2;
        if (key_size > INT16_MAX || end - at < key_size + 4) return 0;
        Value key = {at, key_size, STRING};
        at += key_size;
        uint32_t value_size = get32(at);
        at += 4;
        if (value_size > (uint64_t)(end - at)) return 0;
        Value value = {at, (Py_ssize_t)value_size, STRING};
        at += value_size;
        if (!is_ascii(key.at, key.size) || !is_ascii(value.at, value.size)) return 0;
        if (!keep(names, count, &key, &value, found)) return 0;
    }
    return 1;
}

typedef struct {
    const uint8_t *header, *body, *end;
    Py_ssize_t header_size;
    int type;
} Frame;

/* Find the frame that begins at ``at``; false unless all of it is there. */
static int find_frame(const uint8_t *at, Py_ssize_t left, long frame_size_max, Frame *frame) {
    if (left < PREFIX_SIZE) return 0;
    int64_t frame_size = get32(at);
    frame->header_size = (Py_ssize_t)(get32(at + 4) & 0xFFFFFF);
    frame->type = at[4];
    if (frame_size > frame_size_max || frame_size > left - 4) return 0;
    if (frame->header_size > frame_size - 4 || frame->header_size > HEADER_SIZE_MAX) return 0;
    frame->header = at + PREFIX_SIZE;
    frame->body = frame->header + frame->header_size;
    frame->end = at + 4 + frame_size;
    return 1;
}

static int read_header(const Frame *frame, const Name *names, int count, Head *head,
                       Value *found) {
    memset(found, 0, (size_t)count * sizeof *found);
    if (frame->type == JSON)
        return json_header(frame->header, frame->header_size, names, count, head, found);
    if (frame->type == ROCKETMQ)
        return binary_header(frame->header, frame->header_size, names, count, head, found);
    return 0;
}

/* -- take_sends -------------------------------------------------------------------------------- */

enum { TOPIC, QUEUE, SYS_FLAG, BORN, MESSAGE_FLAG, PROPERTIES, RECONSUME, BATCH, FIELDS };
static const Name SEND_FIELDS[2 * FIELDS] = {
    NAME("b"),     NAME("e"),       NAME("f"),       NAME("g"),
    NAME("h"),     NAME("i"),       NAME("j"),       NAME("m"),
    NAME("topic"), NAME("queueId"), NAME("sysFlag"), NAME("bornTimestamp"),
    NAME("flag"),  NAME("properties"), NAME("reconsumeTimes"), NAME("batch"),
};

typedef struct {
    const Value *topic, *properties;
    int64_t queue_id, sys_flag, born_ms, flag, reconsume_times;
} Send;

/* Read the fields of a usual request to send one message; false if it is none. */
static int read_send(const Head *head, const Value *found, Send *send) {
    if (head->code != SEND_MESSAGE && head->code != SEND_MESSAGE_V2) return 0;
    if (head->flag != 0 && head->flag != FLAG_ONE_WAY) return 0;
    if (found[TOPIC].kind == MISSING) found += FIELDS; /* the long names */
    const Value *batch = &found[BATCH], *properties = &found[PROPERTIES];
    send->topic = &found[TOPIC];
    send->properties = properties;
    send->reconsume_times = 0;
    if (send->topic->kind != STRING) return 0;
    if (properties->kind == NUMBER || properties->size > 6 * TEXT_SIZE_MAX) return 0;
    if (batch->kind == ESCAPED) return 0;
    if (batch->kind != MISSING && !is_text(batch, "false") && !is_text(batch, "0")) return 0;
    return to_int32(&found[QUEUE], &send->queue_id) &&
           to_natural32(&found[SYS_FLAG], &send->sys_flag) &&
           to_integer(&found[BORN], &send->born_ms) && send->born_ms >= 0 &&
           to_natural32(&found[MESSAGE_FLAG], &send->flag) &&
           (found[RECONSUME].kind == MISSING ||
            to_natural32(&found[RECONSUME], &send->reconsume_times));
}

static uint8_t hex_value(uint8_t byte) {
    return is_digit(byte) ? (uint8_t)(byte - '0') : (uint8_t)((byte | 0x20) - 'a' + 10);
}

/* Write a string without its escapes, which json_string has checked; return the size. */
static Py_ssize_t unescape(const Value *value, uint8_t *to) {
    static const char FROM[] = "bfnrt", TO[] = "\b\f\n\r\t";
    const uint8_t *at = value->at, *end = at + value->size, *begin = to;
    while (at < end) {
        if (*at != '\\') {
            *to++ = *at++;
        } else if (at[1] == 'u') {
            *to++ = (uint8_t)((at[4] - '0') << 4 | hex_value(at[5]));
            at += 6;
        } else {
            const char *letter = strchr(FROM, at[1]);
            *to++ = letter == NULL ? at[1] : (uint8_t)TO[letter - FROM];
            at += 2;
        }
    }
    return to - begin;
}

static PyObject *ascii(const uint8_t *at, Py_ssize_t size) {
    return PyUnicode_DecodeASCII((const char *)at, size, NULL);
}

/* Return the properties of a text as a dict, and (borrowed) their UNIQ_KEY if there is one. */
static PyObject *properties_of(const uint8_t *at, Py_ssize_t size, PyObject **unique_key) {
    static const Name UNIQ_KEY = NAME("UNIQ_KEY");
    PyObject *properties = PyDict_New();
    const uint8_t *end = at + size;
    while (properties != NULL && at < end) {
        const uint8_t *pair_end = memchr(at, 2, (size_t)(end - at));
        if (pair_end == NULL) pair_end = end;
        const uint8_t *mark = memchr(at, 1, (size_t)(pair_end - at));
        if (mark != NULL && mark > at) {
            Value key = {at, mark - at, STRING};
            PyObject *name = ascii(at, mark - at);
            PyObject *value = ascii(mark + 1, pair_end - mark - 1);
            if (name == NULL || value == NULL || PyDict_SetItem(properties, name, value) < 0)
                Py_CLEAR(properties);
            else if (find_name(&UNIQ_KEY, 1, &key) == 0)
                *unique_key = value; /* the dict has it */
            Py_XDECREF(name);
            Py_XDECREF(value);
        }
        at = pair_end + 1;
    }
    return properties;
}

/* What the caller of take_sends gives: the class of messages, the names of its fields. */
typedef struct {
    PyTypeObject *type;
    PyObject *names, *born_host, *no_arguments;
} Maker;

/* Make a message; its fields are set in the order of the names, and values are released. */
static PyObject *make_message(const Maker *maker, PyObject **values, Py_ssize_t count) {
    PyObject *message = PyBaseObject_Type.tp_new(maker->type, maker->no_arguments, NULL);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (message != NULL && (values[i] == NULL || PyObject_GenericSetAttr(message,
                                    PyTuple_GET_ITEM(maker->names, i), values[i]) < 0))
            Py_CLEAR(message);
        Py_XDECREF(values[i]);
    }
    return message;
}

enum { MESSAGE_FIELDS = 10 };

/* Return (message, (opaque, serialize type, unique key) or None); NULL with an exception, or
   without one for a request that is not usual. */
static PyObject *send_of(const Frame *frame, const Maker *maker, PyObject **topic) {
    Head head;
    Value found[2 * FIELDS];
    Send send;
    if (!read_header(frame, SEND_FIELDS, 2 * FIELDS, &head, found)) return NULL;
    if (!read_send(&head, found, &send)) return NULL;
    PyObject *properties = NULL, *unique_key = Py_None;
    if (send.properties->kind == ESCAPED) {
        uint8_t *text = PyMem_Malloc((size_t)send.properties->size);
        if (text == NULL) return PyErr_NoMemory();
        Py_ssize_t size = unescape(send.properties, text);
        if (size <= TEXT_SIZE_MAX) properties = properties_of(text, size, &unique_key);
        PyMem_Free(text);
    } else if (send.properties->size > 0) {
        if (send.properties->size <= TEXT_SIZE_MAX)
            properties = properties_of(send.properties->at, send.properties->size, &unique_key);
    } else {
        properties = Py_NewRef(Py_None);
    }
    if (properties == NULL) return NULL;
    /* One object for the topic of all messages of a read: it is hashed often. */
    if (*topic == NULL || PyUnicode_GET_LENGTH(*topic) != send.topic->size ||
        memcmp(PyUnicode_1BYTE_DATA(*topic), send.topic->at, (size_t)send.topic->size) != 0)
        Py_XSETREF(*topic, ascii(send.topic->at, send.topic->size));
    PyObject *reply_to = Py_NewRef(Py_None);
    if (head.flag != FLAG_ONE_WAY)
        Py_SETREF(reply_to, Py_BuildValue("(LiO)", (long long)head.opaque, frame->type, unique_key));
    PyObject *values[MESSAGE_FIELDS] = {
        Py_XNewRef(*topic),
        PyBytes_FromStringAndSize((const char *)frame->body, frame->end - frame->body),
        properties,
        PyLong_FromLongLong(send.queue_id),
        PyLong_FromLongLong(send.flag),
        PyLong_FromLongLong(send.sys_flag),
        PyLong_FromLongLong(send.born_ms),
        Py_NewRef(maker->born_host),
        PyLong_FromLongLong(send.reconsume_times),
        PyLong_FromLong(0),
    };
    PyObject *message = make_message(maker, values, MESSAGE_FIELDS);
    if (message == NULL || reply_to == NULL) {
        Py_XDECREF(message);
        Py_XDECREF(reply_to);
        return NULL;
    }
    return Py_BuildValue("(NN)", message, reply_to);
}

static int is_maker(PyObject *type, PyObject *names) {
    return PyType_Check(type) && PyTuple_Check(names) && PyTuple_GET_SIZE(names) == MESSAGE_FIELDS;
}

static int check_count(Py_ssize_t count, Py_ssize_t expected, const char *name) {
    if (count == expected) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, expected, count);
    return 0;
}

/* take_sends(data, position, count_max, frame_size_max, born_host, message type, field names) */
PyObject *take_sends(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    if (!check_count(count, 7, "take_sends")) return NULL;
    Py_ssize_t position = PyLong_AsSsize_t(args[1]);
    long count_max = PyLong_AsLong(args[2]), frame_size_max = PyLong_AsLong(args[3]);
    if (PyErr_Occurred()) return NULL;
    if (!is_maker(args[5], args[6])) {
        PyErr_SetString(PyExc_TypeError, "take_sends needs a type and the names of its fields");
        return NULL;
    }
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) return NULL;
    if (position < 0) position = data.len;
    PyObject *sends = PyList_New(0), *topic = NULL;
    Maker maker = {(PyTypeObject *)args[5], args[6], args[4], PyTuple_New(0)};
    while (sends != NULL && maker.no_arguments != NULL && PyList_GET_SIZE(sends) < count_max &&
           position < data.len) {
        Frame frame;
        if (!find_frame((const uint8_t *)data.buf + position, data.len - position, frame_size_max,
                        &frame))
            break;
        PyObject *send = send_of(&frame, &maker, &topic);
        if (send == NULL) break;
        position = frame.end - (const uint8_t *)data.buf;
        if (PyList_Append(sends, send) < 0) Py_CLEAR(sends);
        Py_DECREF(send);
    }
    Py_XDECREF(topic);
    Py_XDECREF(maker.no_arguments);
    PyBuffer_Release(&data);
    if (sends == NULL || PyErr_Occurred()) {
        Py_XDECREF(sends);
        return NULL;
    }
    return Py_BuildValue("(Nn)", sends, position);
}

/* -- take_entries ------------------------------------------------------------------------------ */

enum {
    ENTRY_HEAD_SIZE = 20,
    ENTRY_SIZE_MIN = 22,
    ENTRY_BODY = 1,
    ENTRY_PROPERTIES = 2,
    ENTRY_FLAG = 4,
};

/* take_entries(body, count_max, shared properties, values of the other fields, message type,
   field names) -> the messages of a batch, or None if this is Python's */
PyObject *take_entries(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    if (!check_count(count, 6, "take_entries")) return NULL;
    long count_max = PyLong_AsLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (!PyBytes_Check(args[0]) || !PyDict_CheckExact(args[2]) || !PyTuple_Check(args[3]) ||
        PyTuple_GET_SIZE(args[3]) != MESSAGE_FIELDS || !is_maker(args[4], args[5])) {
        PyErr_SetString(PyExc_TypeError, "take_entries needs bytes, a dict, values and a type");
        return NULL;
    }
    Maker maker = {(PyTypeObject *)args[4], args[5], NULL, PyTuple_New(0)};
    PyObject *messages = PyList_New(0);
    const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    const uint8_t *end = at + PyBytes_GET_SIZE(args[0]);
    while (messages != NULL && maker.no_arguments != NULL && at < end) {
        if (end - at < ENTRY_SIZE_MIN || PyList_GET_SIZE(messages) >= count_max) break;
        int32_t entry_size = (int32_t)get32(at), body_size = (int32_t)get32(at + 16);
        if (entry_size < ENTRY_SIZE_MIN || entry_size > end - at) break;
        if (body_size < 0 || body_size > entry_size - ENTRY_SIZE_MIN) break;
        const uint8_t *body = at + ENTRY_HEAD_SIZE, *text = body + body_size + 2;
        Py_ssize_t text_size = at + entry_size - text;
        if ((text[-2] << 8 | text[-1]) != text_size || text_size > INT16_MAX) break;
        if (!is_ascii(text, text_size)) break;
        PyObject *unique_key, *values[MESSAGE_FIELDS];
        for (int i = 0; i < MESSAGE_FIELDS; i++)
            values[i] = Py_NewRef(PyTuple_GET_ITEM(args[3], i));
        PyObject *properties = properties_of(text, text_size, &unique_key);
        if (properties != NULL && PyDict_Update(properties, args[2]) < 0) Py_CLEAR(properties);
        Py_SETREF(values[ENTRY_PROPERTIES], properties);
        Py_SETREF(values[ENTRY_BODY], PyBytes_FromStringAndSize((const char *)body, body_size));
        Py_SETREF(values[ENTRY_FLAG], PyLong_FromLong((int32_t)get32(at + 12)));
        PyObject *message = make_message(&maker, values, MESSAGE_FIELDS);
        if (message == NULL || PyList_Append(messages, message) < 0) Py_CLEAR(messages);
        Py_XDECREF(message);
        at += entry_size;
    }
    Py_XDECREF(maker.no_arguments);
    if (PyErr_Occurred()) Py_CLEAR(messages);
    if (messages == NULL) return NULL;
    if (at == end && PyList_GET_SIZE(messages) > 0) return messages;
    Py_DECREF(messages);
    Py_RETURN_NONE;
}

/* -- take_replies ------------------------------------------------------------------------------ */

enum { MESSAGE_ID, REPLY_QUEUE, QUEUE_OFFSET, REPLY_FIELDS };
static const Name REPLY_NAMES[REPLY_FIELDS] = {
    NAME("msgId"), NAME("queueId"), NAME("queueOffset")};

/* take_replies(data, position, frame_size_max) -> ([(opaque, message id, queue id, queue offset,
   position of the frame)], position) */
PyObject *take_replies(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    if (!check_count(count, 3, "take_replies")) return NULL;
    Py_ssize_t position = PyLong_AsSsize_t(args[1]);
    long frame_size_max = PyLong_AsLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) return NULL;
    if (position < 0) position = data.len;
    PyObject *replies = PyList_New(0);
    while (replies != NULL && position < data.len) {
        Frame frame;
        Head head;
        Value found[REPLY_FIELDS];
        int64_t queue_id, queue_offset;
        const Value *id = &found[MESSAGE_ID];
        if (!find_frame((const uint8_t *)data.buf + position, data.len - position, frame_size_max,
                        &frame) ||
            !read_header(&frame, REPLY_NAMES, REPLY_FIELDS, &head, found))
            break;
        if (head.code != 0 || head.flag != FLAG_RESPONSE || head.has_remark) break;
        if (id->kind != STRING || id->size == 0) break;
        if (!to_int32(&found[REPLY_QUEUE], &queue_id) ||
            !to_integer(&found[QUEUE_OFFSET], &queue_offset))
            break;
        PyObject *reply = Py_BuildValue("(Ls#LLn)", (long long)head.opaque, (const char *)id->at,
                                        id->size, (long long)queue_id, (long long)queue_offset,
                                        position);
        position = frame.end - (const uint8_t *)data.buf;
        if (reply == NULL || PyList_Append(replies, reply) < 0) Py_CLEAR(replies);
        Py_XDECREF(reply);
    }
    PyBuffer_Release(&data);
    return replies == NULL ? NULL : Py_BuildValue("(Nn)", replies, position);
}

/* -- text to write ----------------------------------------------------------------------------- */

typedef struct {
    uint8_t *at, *end;
    int is_json;
} Output; /* ``at`` is NULL once something did not fit */

static void add(Output *out, const void *from, Py_ssize_t size) {
    if (out->at != NULL && out->end - out->at >= size) {
        memcpy(out->at, from, (size_t)size);
        out->at += size;
    } else {
        out->at = NULL;
    }
}

static void add_text(Output *out, const char *text) { add(out, text, (Py_ssize_t)strlen(text)); }

static void add_number(Output *out, long long number) {
    char text[24];
    add(out, text, snprintf(text, sizeof text, "%lld", number));
}

/* Write ASCII as it stands in a JSON string or in a binary header. */
static void add_ascii(Output *out, const uint8_t *from, Py_ssize_t size) {
    if (!out->is_json) {
        add(out, from, size);
        return;
    }
    static const char LETTERS[] = "\b\f\n\r\t", NAMES[] = "bfnrt", HEX[] = "0123456789abcdef";
    for (Py_ssize_t i = 0; i < size; i++) {
        uint8_t byte = from[i];
        char escape[6] = {'\\', 'u', '0', '0', HEX[byte >> 4], HEX[byte & 15]};
        const char *letter = byte == 0 ? NULL : strchr(LETTERS, byte);
        if (letter != NULL) {
            escape[1] = NAMES[letter - LETTERS];
            add(out, escape, 2);
        } else if (byte == '"' || byte == '\\') {
            escape[1] = (char)byte;
            add(out, escape, 2);
        } else if (byte < 0x20 || byte > 0x7E) {
            add(out, escape, 6);
        } else if (out->at != NULL && out->at < out->end) {
            *out->at++ = byte;
        } else {
            out->at = NULL;
        }
    }
}

/* One ext field: a name, then its value between begin_field and end_field. */
static uint8_t *begin_field(Output *out, const char *name, int is_first) {
    if (out->is_json) {
        add_text(out, is_first ? "\"" : ",\"");
        add_text(out, name);
        add_text(out, "\":\"");
        return out->at;
    }
    Py_ssize_t size = (Py_ssize_t)strlen(name);
    uint8_t sizes[4] = {0, (uint8_t)size, 0, 0};
    add(out, sizes, 2);
    add(out, name, size);
    uint8_t *size_at = out->at;
    add(out, "\0\0\0\0", 4);
    return size_at;
}

static void end_field(Output *out, uint8_t *size_at) {
    if (out->is_json)
        add_text(out, "\"");
    else if (out->at != NULL)
        put32(size_at, (uint32_t)(out->at - size_at - 4));
}

static void number_field(Output *out, const char *name, long long number, int is_first) {
    uint8_t *field = begin_field(out, name, is_first);
    add_number(out, number);
    end_field(out, field);
}

static void text_field(Output *out, const char *name, const void *from, Py_ssize_t size,
                       int is_first) {
    uint8_t *field = begin_field(out, name, is_first);
    add_ascii(out, from, size);
    end_field(out, field);
}

/* Begin a frame and its header; end_head completes both. */
static void begin_head(Output *out, int code, int flag, long long opaque) {
    add(out, "\0\0\0\0\0\0\0\0", PREFIX_SIZE);
    if (out->is_json) {
        add_text(out, "{\"code\":");
        add_number(out, code);
        add_text(out, ",\"extFields\":{");
        return;
    }
    uint8_t fixed[BINARY_HEAD_SIZE + 4] = {(uint8_t)(code >> 8), (uint8_t)code, LANGUAGE_NUMBER,
                                           VERSION >> 8, VERSION & 0xFF};
    put32(fixed + 5, (uint32_t)opaque);
    put32(fixed + 9, (uint32_t)flag);
    add(out, fixed, sizeof fixed);
}

static PyObject *end_head(Output *out, uint8_t *begin, int flag, long long opaque,
                          Py_ssize_t body_size) {
    if (out->is_json) {
        add_text(out, "},\"flag\":");
        add_number(out, flag);
        add_text(out, ",\"language\":\"PYTHON\",\"opaque\":");
        add_number(out, opaque);
        add_text(out, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
        add_number(out, VERSION);
        add_text(out, "}");
    }
    if (out->at == NULL) Py_RETURN_NONE;
    Py_ssize_t size = out->at - begin;
    if (body_size > INT32_MAX - size) Py_RETURN_NONE;
    put32(begin, (uint32_t)(size - 4 + body_size));
    put32(begin + 4, (uint32_t)(size - PREFIX_SIZE));
    begin[4] = out->is_json ? JSON : ROCKETMQ;
    if (!out->is_json) /* the size of the ext fields */
        put32(begin + PREFIX_SIZE + BINARY_HEAD_SIZE,
              (uint32_t)(size - PREFIX_SIZE - BINARY_HEAD_SIZE - 4));
    return PyBytes_FromStringAndSize((char *)begin, size);
}

static int ascii_of(PyObject *text, Value *value) {
    if (!PyUnicode_Check(text) || !PyUnicode_IS_COMPACT_ASCII(text)) return 0;
    *value = (Value){PyUnicode_1BYTE_DATA(text), PyUnicode_GET_LENGTH(text), STRING};
    return 1;
}

/* Read integers of Python; false for anything else, or a large one. */
static int integers_of(PyObject *const *args, int count, long long *numbers) {
    for (int i = 0; i < count; i++) {
        int overflow = 0;
        if (!PyLong_Check(args[i]) || PyBool_Check(args[i])) return 0;
        numbers[i] = PyLong_AsLongLongAndOverflow(args[i], &overflow);
        if (overflow || numbers[i] < -1000000000000000000 || numbers[i] > 1000000000000000000)
            return 0;
    }
    return 1;
}

static int fits32(long long number) { return number >= INT32_MIN && number <= INT32_MAX; }

/* ok_reply((opaque, serialize type, transaction id or None), physic offset, queue id,
   queue offset, store host) -> bytes, or None if this is Python's */
PyObject *ok_reply(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    enum { PHYSIC_OFFSET, QUEUE_ID, OFFSET, NUMBERS };
    enum { OPAQUE, TYPE, REPLY_TO };
    if (!check_count(count, 5, "ok_reply")) return NULL;
    long long numbers[NUMBERS], request[REPLY_TO];
    PyObject *reply_to = args[0], *host = args[1 + NUMBERS];
    Value transaction = {NULL, 0, MISSING};
    uint8_t buffer[1024];
    if (!PyTuple_Check(reply_to) || PyTuple_GET_SIZE(reply_to) != REPLY_TO + 1) Py_RETURN_NONE;
    if (!integers_of(&PyTuple_GET_ITEM(reply_to, 0), REPLY_TO, request)) Py_RETURN_NONE;
    if (!integers_of(args + 1, NUMBERS, numbers) || !fits32(request[OPAQUE])) Py_RETURN_NONE;
    if (request[TYPE] != JSON && request[TYPE] != ROCKETMQ) Py_RETURN_NONE;
    if (!PyBytes_Check(host) || PyBytes_GET_SIZE(host) > 20 || numbers[PHYSIC_OFFSET] < 0)
        Py_RETURN_NONE;
    PyObject *id_of = PyTuple_GET_ITEM(reply_to, REPLY_TO);
    if (id_of != Py_None && !ascii_of(id_of, &transaction)) Py_RETURN_NONE;
    Output out = {buffer, buffer + sizeof buffer, request[TYPE] == JSON};
    begin_head(&out, 0, FLAG_RESPONSE, request[OPAQUE]);
    char id[40 + 17];
    Py_ssize_t size = 0;
    static const char HEX[] = "0123456789ABCDEF";
    for (Py_ssize_t i = 0; i < PyBytes_GET_SIZE(host); i++) {
        uint8_t byte = (uint8_t)PyBytes_AS_STRING(host)[i];
        id[size++] = HEX[byte >> 4];
        id[size++] = HEX[byte & 15];
    }
    for (int shift = 60; shift >= 0; shift -= 4)
        id[size++] = HEX[numbers[PHYSIC_OFFSET] >> shift & 15];
    text_field(&out, "msgId", id, size, 1);
    number_field(&out, "queueId", numbers[QUEUE_ID], 0);
    number_field(&out, "queueOffset", numbers[OFFSET], 0);
    if (transaction.kind != MISSING)
        text_field(&out, "transactionId", transaction.at, transaction.size, 0);
    return end_head(&out, buffer, FLAG_RESPONSE, request[OPAQUE], 0);
}

/* Write the properties' text as a value; false if this is Python's. */
static int add_properties(Output *out, PyObject *properties, const Value *unique_key,
                          Py_ssize_t size_max) {
    Py_ssize_t size = 0, position = 0;
    if (unique_key->kind != MISSING) {
        add(out, "UNIQ_KEY", 8);
        add_ascii(out, (const uint8_t *)"\1", 1);
        add_ascii(out, unique_key->at, unique_key->size);
        add_ascii(out, (const uint8_t *)"\2", 1);
        size = unique_key->size + 10;
    }
    if (properties == Py_None) return 1;
    if (!PyDict_CheckExact(properties)) return 0;
    PyObject *name_of, *value_of;
    while (PyDict_Next(properties, &position, &name_of, &value_of)) {
        Value name, value;
        if (!ascii_of(name_of, &name) || !ascii_of(value_of, &value) || name.size == 0) return 0;
        for (int mark = 1; mark <= 2; mark++)
            if (memchr(name.at, mark, (size_t)name.size) || memchr(value.at, mark, (size_t)value.size))
                return 0;
        size += name.size + value.size + 2;
        if (size > size_max) return 0;
        add_ascii(out, name.at, name.size);
        add_ascii(out, (const uint8_t *)"\1", 1);
        add_ascii(out, value.at, value.size);
        add_ascii(out, (const uint8_t *)"\2", 1);
    }
    return 1;
}

/* send_head(serialize type, opaque, queue id, sys flag, born ms, flag, reconsume times, body size,
   group, topic, default topic, new unique key or None, properties or None)
   -> bytes, or None if this is Python's */
PyObject *send_head(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    enum { TYPE, OPAQUE, QUEUE_ID, SYS, BORN_MS, MSG_FLAG, TIMES, BODY_SIZE, NUMBERS };
    if (!check_count(count, NUMBERS + 5, "send_head")) return NULL;
    long long numbers[NUMBERS];
    Value group, topic, default_topic, unique_key = {NULL, 0, MISSING};
    PyObject *properties = args[NUMBERS + 4];
    uint8_t buffer[4096];
    if (!integers_of(args, NUMBERS, numbers) || !fits32(numbers[OPAQUE])) Py_RETURN_NONE;
    if (numbers[TYPE] != JSON && numbers[TYPE] != ROCKETMQ) Py_RETURN_NONE;
    if (!ascii_of(args[NUMBERS], &group) || !ascii_of(args[NUMBERS + 1], &topic) ||
        !ascii_of(args[NUMBERS + 2], &default_topic))
        Py_RETURN_NONE;
    if (args[NUMBERS + 3] != Py_None && !ascii_of(args[NUMBERS + 3], &unique_key)) Py_RETURN_NONE;
    Output out = {buffer, buffer + sizeof buffer, numbers[TYPE] == JSON};
    begin_head(&out, SEND_MESSAGE_V2, 0, numbers[OPAQUE]);
    text_field(&out, "a", group.at, group.size, 1);
    text_field(&out, "b", topic.at, topic.size, 0);
    text_field(&out, "c", default_topic.at, default_topic.size, 0);
    text_field(&out, "d", "8", 1, 0);
    number_field(&out, "e", numbers[QUEUE_ID], 0);
    number_field(&out, "f", numbers[SYS], 0);
    number_field(&out, "g", numbers[BORN_MS], 0);
    number_field(&out, "h", numbers[MSG_FLAG], 0);
    uint8_t *field = begin_field(&out, "i", 0);
    if (!add_properties(&out, properties, &unique_key, sizeof buffer)) Py_RETURN_NONE;
    end_field(&out, field);
    number_field(&out, "j", numbers[TIMES], 0);
    text_field(&out, "k", "false", 5, 0);
    text_field(&out, "m", "false", 5, 0);
    return end_head(&out, buffer, 0, numbers[OPAQUE], (Py_ssize_t)numbers[BODY_SIZE]);
}
