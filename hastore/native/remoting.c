/* take_sends: requests to send one message, many at a time; twin: hastore/wire/usual_frames.py.

   The twin finds usual headers by a regular expression; is_send reads the same grammar from left to
   right.  Any other frame ends the reading: the caller reads it in Python, so no rule for unusual
   and damaged frames is here.  All input is untrusted: a byte is read only while ``at < end``. */

#define PY_SSIZE_T_CLEAN
#include "native.h"
#include <stdint.h>
#include <string.h>

enum {
    PREFIX_SIZE = 8, /* frame size, header word */
    HEADER_SIZE_MAX = 128 * 1024,
    PROPERTIES_SIZE_MAX = 65536, /* as they stand in the header */
    ESCAPE_SIZE = 6,             /* \u0001 after a property's name, \u0002 after its value */
    UNIQ_KEY_SIZE = 8,
    MESSAGE_FIELDS = 10,
};

typedef struct {
    const uint8_t *at, *end;
} Text;

typedef struct {
    Text topic, properties;
    int64_t queue_id, sys_flag, born_ms, flag, reconsume_times, opaque;
    int is_one_way;
} Send;

/* -- the header: each function takes what it reads from ``in``, or returns false ---------------- */

static int take(Text *in, const char *word) {
    size_t size = strlen(word);
    if ((size_t)(in->end - in->at) < size || memcmp(in->at, word, size) != 0) return 0;
    in->at += size;
    return 1;
}

static int is_plain(uint8_t byte) {
    return byte >= ' ' && byte < 0x80 && byte != '"' && byte != '\\';
}

/* Up to a quote, a backslash or what is not ASCII text; may be empty. */
static int take_text(Text *in, Text *found) {
    found->at = in->at;
    while (in->at < in->end && is_plain(*in->at)) in->at++;
    found->end = in->at;
    return 1;
}

static int skip_text(Text *in) {
    Text skipped;
    return take_text(in, &skipped);
}

/* Pairs of name \u0001 value \u0002, with the marks as escapes; the last \u0002 may be missing. */
static int take_properties(Text *in, Text *found) {
    Text name;
    found->at = in->at;
    do {
        take_text(in, &name);
        if (!take(in, "\\u0001")) {
            if (name.at != name.end) return 0;
            break;
        }
        skip_text(in);
    } while (take(in, "\\u0002"));
    found->end = in->at;
    return found->end - found->at <= PROPERTIES_SIZE_MAX;
}

static int take_digits(Text *in, int count_max, int64_t *number) {
    const uint8_t *begin = in->at;
    *number = 0;
    while (in->at < in->end && *in->at >= '0' && *in->at <= '9' && in->at - begin < count_max)
        *number = 10 * *number + (*in->at++ - '0');
    return in->at > begin;
}

/* At most nine digits, so that it fits 32 bits. */
static int take_signed(Text *in, int64_t *number) {
    int64_t sign = take(in, "-") ? -1 : 1;
    if (!take_digits(in, 9, number)) return 0;
    *number *= sign;
    return 1;
}

/* As JSON writes it: no 0 before other digits, no -0. */
static int take_integer(Text *in, int64_t *number) {
    *number = 0;
    return take(in, "0") || (!take(in, "-0") && take_signed(in, number));
}

static int is_send(Text in, Send *send) {
    int64_t version;
    if (!(take(&in, "{\"code\":310,\"extFields\":{\"a\":\"") && skip_text(&in) &&
          take(&in, "\",\"b\":\"") && take_text(&in, &send->topic) &&
          take(&in, "\",\"c\":\"") && skip_text(&in) &&
          take(&in, "\",\"d\":\"") && skip_text(&in) &&
          take(&in, "\",\"e\":\"") && take_signed(&in, &send->queue_id) &&
          take(&in, "\",\"f\":\"") && take_digits(&in, 9, &send->sys_flag) &&
          take(&in, "\",\"g\":\"") && take_digits(&in, 18, &send->born_ms) &&
          take(&in, "\",\"h\":\"") && take_digits(&in, 9, &send->flag) &&
          take(&in, "\",\"i\":\"") && take_properties(&in, &send->properties) &&
          take(&in, "\",\"j\":\"") && take_digits(&in, 9, &send->reconsume_times) &&
          take(&in, "\",\"k\":\"") && skip_text(&in) && take(&in, "\"")))
        return 0;
    if (take(&in, ",\"l\":\"") && !(skip_text(&in) && take(&in, "\""))) return 0;
    if (take(&in, ",\"m\":\"") && !take(&in, "false\"")) return 0;
    if (take(&in, ",\"n\":\"") && !(skip_text(&in) && take(&in, "\""))) return 0;
    send->is_one_way = take(&in, "},\"flag\":2");
    return (send->is_one_way || take(&in, "},\"flag\":0")) &&
           take(&in, ",\"language\":\"") && skip_text(&in) &&
           take(&in, "\",\"opaque\":") && take_integer(&in, &send->opaque) &&
           take(&in, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":") &&
           take_integer(&in, &version) && take(&in, "}") && in.at == in.end;
}

/* -- the message ------------------------------------------------------------------------------- */

static PyObject *ascii(Text text) {
    return PyUnicode_DecodeASCII((const char *)text.at, text.end - text.at, NULL);
}

/* Return the properties as a dict, or None for none; and their UNIQ_KEY (borrowed), if any. */
static PyObject *properties_of(Text in, PyObject **unique_key) {
    if (in.at == in.end) return Py_NewRef(Py_None);
    PyObject *properties = PyDict_New();
    while (properties != NULL && in.at < in.end) {
        Text name_at, value_at;
        take_text(&in, &name_at);
        in.at += ESCAPE_SIZE; /* checked by take_properties */
        take_text(&in, &value_at);
        if (in.at < in.end) in.at += ESCAPE_SIZE;
        if (name_at.at == name_at.end) continue; /* no name: ignored */
        PyObject *name = ascii(name_at), *value = ascii(value_at);
        if (name == NULL || value == NULL || PyDict_SetItem(properties, name, value) < 0)
            Py_CLEAR(properties);
        else if (name_at.end - name_at.at == UNIQ_KEY_SIZE &&
                 memcmp(name_at.at, "UNIQ_KEY", UNIQ_KEY_SIZE) == 0)
            *unique_key = value; /* the dict holds it */
        Py_XDECREF(name);
        Py_XDECREF(value);
    }
    return properties;
}

/* Make an object of ``type`` with the values, which are released, as the attributes ``names``. */
static PyObject *make_message(PyTypeObject *type, PyObject *names, PyObject *no_arguments,
                              PyObject **values) {
    PyObject *message = NULL;
    if (!PyErr_Occurred()) message = PyBaseObject_Type.tp_new(type, no_arguments, NULL);
    for (Py_ssize_t i = 0; i < MESSAGE_FIELDS; i++) {
        if (message != NULL && (values[i] == NULL || PyObject_GenericSetAttr(message,
                                    PyTuple_GET_ITEM(names, i), values[i]) < 0))
            Py_CLEAR(message);
        Py_XDECREF(values[i]);
    }
    return message;
}

/* take_sends(data, position, count_max, frame_size_max, born_host, message type, field names)
   -> ([(message, (opaque, 0, unique key) or None)], position after them) */
PyObject *take_sends(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data;
    Py_ssize_t position, count_max, frame_size_max;
    PyObject *born_host, *type, *names;
    if (!PyArg_ParseTuple(args, "y*nnnOO!O!", &data, &position, &count_max, &frame_size_max,
                          &born_host, &PyType_Type, &type, &PyTuple_Type, &names))
        return NULL;
    PyObject *sends = PyList_New(0), *no_arguments = PyTuple_New(0);
    PyObject *topic = PyUnicode_New(0, 0); /* one object for all of a topic: it is hashed often */
    if (position < 0 || PyTuple_GET_SIZE(names) != MESSAGE_FIELDS)
        PyErr_SetString(PyExc_ValueError, "take_sends needs a position, and 10 names");
    while (!PyErr_Occurred() && PyList_GET_SIZE(sends) < count_max &&
           data.len - position >= PREFIX_SIZE) {
        const uint8_t *at = (const uint8_t *)data.buf + position;
        int64_t frame_size = get32(at), header_size = get32(at + 4); /* with the type, 0: JSON */
        if (frame_size > frame_size_max || frame_size > data.len - position - 4) break;
        if (header_size > HEADER_SIZE_MAX || header_size > frame_size - 4) break;
        const uint8_t *header = at + PREFIX_SIZE, *body = header + header_size;
        Send send;
        if (!is_send((Text){header, body}, &send)) break;
        Py_ssize_t topic_size = send.topic.end - send.topic.at;
        if (PyUnicode_GET_LENGTH(topic) != topic_size ||
            memcmp(PyUnicode_DATA(topic), send.topic.at, (size_t)topic_size) != 0) {
            Py_SETREF(topic, ascii(send.topic));
            if (topic == NULL) break;
        }
        PyObject *unique_key = Py_None;
        PyObject *values[MESSAGE_FIELDS] = {
            Py_NewRef(topic),
            PyBytes_FromStringAndSize((const char *)body, at + 4 + frame_size - body),
            properties_of(send.properties, &unique_key),
            PyLong_FromLongLong(send.queue_id),
            PyLong_FromLongLong(send.flag),
            PyLong_FromLongLong(send.sys_flag),
            PyLong_FromLongLong(send.born_ms),
            Py_NewRef(born_host),
            PyLong_FromLongLong(send.reconsume_times),
            PyLong_FromLong(0),
        };
        PyObject *reply_to = NULL, *message = NULL, *item = NULL;
        if (!PyErr_Occurred())
            reply_to = send.is_one_way ? Py_NewRef(Py_None)
                                       : Py_BuildValue("(LiO)", send.opaque, 0, unique_key);
        message = make_message((PyTypeObject *)type, names, no_arguments, values);
        if (message != NULL && reply_to != NULL) item = PyTuple_Pack(2, message, reply_to);
        if (item != NULL) PyList_Append(sends, item);
        Py_XDECREF(message);
        Py_XDECREF(reply_to);
        Py_XDECREF(item);
        position += 4 + frame_size;
    }
    PyBuffer_Release(&data);
    PyObject *found = PyErr_Occurred() ? NULL : Py_BuildValue("(On)", sends, position);
    Py_XDECREF(sends);
    Py_XDECREF(no_arguments);
    Py_XDECREF(topic);
    return found;
}
