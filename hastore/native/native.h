/* Numbers and ASCII in a buffer, for _native.c and remoting.c.  Numbers are unsigned and
   big-endian; a caller converts those that a layout calls signed. */

#ifndef HASTORE_NATIVE_H
#define HASTORE_NATIVE_H

#include <Python.h>
#include <stdint.h>

static inline uint16_t get16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }

static inline uint32_t get32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint64_t get64(const uint8_t *at) {
    return (uint64_t)get32(at) << 32 | get32(at + 4);
}

static inline void put32(uint8_t *at, uint32_t value) {
    for (int i = 3; i >= 0; i--, value >>= 8) at[i] = (uint8_t)value;
}

static inline void put64(uint8_t *at, uint64_t value) {
    put32(at, (uint32_t)(value >> 32));
    put32(at + 4, (uint32_t)value);
}

static inline int is_ascii(const uint8_t *text, Py_ssize_t size) {
    uint8_t all = 0;
    for (Py_ssize_t i = 0; i < size; i++) all |= text[i];
    return all < 0x80;
}

PyObject *take_sends(PyObject *module, PyObject *args); /* in remoting.c */

#endif
