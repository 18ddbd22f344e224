/* The functions of remoting.c, for the table of methods in _native.c. */

#ifndef HASTORE_REMOTING_H
#define HASTORE_REMOTING_H

#include <Python.h>

PyObject *take_sends(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *take_entries(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *take_replies(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *ok_reply(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *send_head(PyObject *module, PyObject *const *args, Py_ssize_t count);

#define REMOTING_METHODS                                                                           \
    {"take_sends", (PyCFunction)(void (*)(void))take_sends, METH_FASTCALL,                         \
     "See hastore.wire.usual_frames."},                                                            \
        {"take_entries", (PyCFunction)(void (*)(void))take_entries, METH_FASTCALL,                 \
         "See hastore.wire.send_message."},                                                        \
        {"take_replies", (PyCFunction)(void (*)(void))take_replies, METH_FASTCALL,                 \
         "See hastore.wire.usual_frames."},                                                        \
        {"ok_reply", (PyCFunction)(void (*)(void))ok_reply, METH_FASTCALL,                         \
         "See hastore.wire.usual_frames."},                                                        \
        {"send_head", (PyCFunction)(void (*)(void))send_head, METH_FASTCALL,                       \
         "See hastore.wire.usual_frames."},

#endif
