/* Looks at the names of directories, and compares them with a stat cache, without Python objects;
 * checks decoded rows; makes the system calls that Python lacks.
 *
 * An accelerator that nothing needs: `listing` and `row_differences` in `treesnap.core.worktree.scan`,
 * `tree` and `statcache` in `treesnap.core.codec` and `treesnap.core.fs.local` do the same where this
 * module was not built. Looks and checks promise one side only: whatever is odd (a name that cannot
 * be looked at, other links, rules, a damaged row) is given back to Python, and what is not given
 * back is as it was, or right.
 *
 * `compare` walks with the interpreter released, on the calling thread and others that block all
 * signals. The calling thread runs the handlers of Python 20 times a second. Nothing recurses, so
 * the depth of a tree costs no stack; below DEPTH_MAX open directories the rest is given back.
 */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <pyconfig.h> /* says whether this Python is a free-threaded one, which has no stable ABI */
#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x030b0000
#endif
#include <Python.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DEPTH_MAX 48
#define LISTING_SIZE (1 << 15)
#define PACKED_ROOM 64 /* for one observation, but for the name */
#define HEAD_ROOM 8    /* for the head of an array */
#define BROUGHT_MAX ((size_t)16 << 20) /* bytes of packed directories that a comparison brings */
#define HANDLERS_EVERY_NS 50000000LL

/* What a comparison says of a directory; see row_differences.py. */
enum { DIFFERS = 0, LOOK = 1, LOOK_BELOW = 2, WHOLE = 3 };

/* What decoded rows hold; see `Entry`, `Observation` and codec/chunklist.py. */
enum { A_FILE = 1, A_DIRECTORY = 2, ENTRY_WIDTH = 9, OBSERVATION_WIDTH = 7 };
enum { ID_SIZE = 32, NAME_SIZE_MAX = 255, INLINE_SIZE_MAX = 128, CONTENT_LENGTH_MAX = 33 };

/* The head of a row, and the flag in it; see codec/statcache.py. */
#define FRAME_SIZE 8
#define HEAD_SIZE 13
enum { MUST_BE_LOOKED_AT = 1 };

typedef struct {
    char *data;
    size_t size, room;
} Buffer;

static int reserve(Buffer *buffer, size_t more) {
    if (buffer->room - buffer->size >= more)
        return 0;
    size_t room = (buffer->size + more) * 2;
    char *data = realloc(buffer->data, room);
    if (data == NULL)
        return errno = ENOMEM, -1;
    buffer->data = data;
    buffer->room = room;
    return 0;
}

static void put(Buffer *to, const void *data, size_t size) {
    memcpy(to->data + to->size, data, size);
    to->size += size;
}

/* ---- numbers: the CRC-32 of zlib, eight bytes at a time (Intel's "slicing by 8") -------------- */

static uint32_t crc_table[8][256];

static void make_crc_table(void) {
    for (int slice = 0; slice < 8; slice++)
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t c = slice ? crc_table[slice - 1][n] : n;
            for (int bit = 0; bit < 8; bit++)
                c = c & 1 ? 0xEDB88320U ^ (c >> 1) : c >> 1;
            crc_table[slice][n] = c;
        }
}

static uint64_t little_endian(const unsigned char *data, int size) {
    uint64_t value = 0;
    for (int n = size - 1; n >= 0; n--)
        value = value << 8 | data[n];
    return value;
}

static uint32_t crc32_of(const unsigned char *data, size_t size) {
    uint32_t c = 0xFFFFFFFFU;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t v = little_endian(data, 8) ^ c;
        c = 0;
        for (int n = 0; n < 8; n++)
            c ^= crc_table[7 - n][v >> 8 * n & 0xFF];
    }
    while (size--)
        c = crc_table[0][(c ^ *data++) & 0xFF] ^ (c >> 8);
    return ~c;
}

/* The number under which a row is found: as path_hash in codec/statcache.py. */
static uint64_t path_hash(const char *path, size_t size) {
    uint32_t backwards = 0xFFFFFFFFU;
    for (size_t n = size; n-- > 0;)
        backwards = crc_table[0][(backwards ^ (unsigned char)path[n]) & 0xFF] ^ (backwards >> 8);
    return (uint64_t)crc32_of((const unsigned char *)path, size) << 32 | (uint32_t)~backwards;
}

/* The first of some sorted numbers of eight bytes that is not below a value. */
static size_t first_from(const unsigned char *numbers, size_t count, uint64_t value) {
    size_t least = 0, most = count;
    while (least < most) {
        size_t middle = least + (most - least) / 2;
        if (little_endian(numbers + 8 * middle, 8) < value)
            least = middle + 1;
        else
            most = middle;
    }
    return least;
}

/* ---- one directory -------------------------------------------------------------------------- */

typedef struct {
    unsigned flags;
    const unsigned char *observations, *hidden;
    size_t size, hidden_size;
} Row;

typedef struct {
    const char *ignore_file, *reserved_prefix;
    const unsigned char *inodes; /* of files that count as changed: sorted numbers */
    size_t inode_count;
} Rules;

/* What one thread works with; of use again for the next directory. */
typedef struct {
    char listing[LISTING_SIZE]; /* first, so that what it holds is aligned */
    Buffer names;            /* as the directory lists them, each ended by a zero */
    Buffer sorted;           /* pointers to them; in the end those to directories come first */
    Buffer packed;           /* the observations, from `begin` on */
    size_t begin, directory_count;
    int has_ignore_file;
} Scratch;

static void free_scratch(Scratch *scratch) {
    if (scratch != NULL) {
        free(scratch->names.data);
        free(scratch->sorted.data);
        free(scratch->packed.data);
        free(scratch);
    }
}

static int compare_names(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static void put_bytes(Buffer *to, uint64_t value, int size) { /* big-endian, as msgpack */
    for (int n = size - 1; n >= 0; n--)
        to->data[to->size++] = (char)(value >> 8 * n);
}

/* Packs a number in the shortest way: positive ones without a sign, up to 64 bits. */
static void put_number(Buffer *to, uint64_t value, int is_negative) {
    int width = 0; /* 1, 2, 4 or 8 bytes */
    if (is_negative ? (int64_t)value >= -32 : value < 0x80) {
        put_bytes(to, value, 1);
        return;
    }
    while (width < 3 && (is_negative ? ~value >> ((8 << width) - 1) : value >> (8 << width)))
        width++;
    put_bytes(to, (is_negative ? 0xD0 : 0xCC) + width, 1);
    put_bytes(to, value, 1 << width);
}

/* Packs a time in nanoseconds; fails where that is no 64-bit number. */
static int put_time(Buffer *to, struct timespec time) {
    int64_t value;
    if (__builtin_mul_overflow((int64_t)time.tv_sec, (int64_t)1000000000, &value) ||
        __builtin_add_overflow(value, (int64_t)time.tv_nsec, &value))
        return -1;
    put_number(to, (uint64_t)value, value < 0);
    return 0;
}

/* Packs one name and what was seen of it; fails where Python has to. */
static int put_observation(Buffer *to, const char *name, const struct stat *seen) {
    size_t length = strlen(name);
    if (length > 0xFFFF || reserve(to, PACKED_ROOM + length))
        return -1;
    put_bytes(to, 0x97, 1);
    put_bytes(to, length <= 0xFF ? 0xC400 | length : 0xC50000 | length, length <= 0xFF ? 2 : 3);
    put(to, name, length);
    put_number(to, seen->st_mode, 0);
    put_number(to, (uint64_t)seen->st_size, 0);
    if (put_time(to, seen->st_mtim) || put_time(to, seen->st_ctim))
        return -1;
    put_number(to, seen->st_ino, 0);
    put_number(to, seen->st_dev, 0);
    return 0;
}

/* Puts the head of an array just before what begins at HEAD_ROOM; returns where it begins. */
static size_t put_head(Buffer *to, uint64_t count) {
    int size = count < 16 ? 1 : count <= 0xFFFF ? 3 : 5;
    size_t end = to->size;
    to->size = HEAD_ROOM - size;
    put_bytes(to, size == 1 ? 0x90 | count : size == 3 ? 0xDC0000 | count : 0xDD00000000 | count, size);
    to->size = end;
    return HEAD_ROOM - size;
}

static int list_names(int fd, Scratch *scratch, size_t *count) {
    long size;
    scratch->names.size = 0;
    *count = 0;
    if (lseek(fd, 0, SEEK_SET) < 0)
        return -1;
    while ((size = syscall(SYS_getdents64, fd, scratch->listing, LISTING_SIZE)) > 0)
        for (long at = 0; at < size;) {
            const struct dirent *entry = (const struct dirent *)(scratch->listing + at);
            const char *name = entry->d_name;
            at += entry->d_reclen;
            if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
                continue;
            size_t length = strlen(name) + 1;
            if (reserve(&scratch->names, length))
                return -1;
            put(&scratch->names, name, length);
            ++*count;
        }
    /* Rewound, or the next one who lists sees it empty. */
    return size < 0 || lseek(fd, 0, SEEK_SET) < 0 ? -1 : 0;
}

/* Returns whether a row says that exclusions hide a name of a type. Names come in their order, so
 * the row's hidden names before it are done with. */
static int is_hidden(Row *row, const char *name, mode_t mode) {
    size_t length = strlen(name);
    while (row != NULL && row->hidden_size >= 4) {
        size_t size = little_endian(row->hidden + 2, 2), common = size < length ? size : length;
        if (size > row->hidden_size - 4)
            return 0;
        int order = memcmp(row->hidden + 4, name, common);
        if (order > 0 || (order == 0 && size > length))
            return 0;
        int is_it = order == 0 && size == length;
        uint64_t type = little_endian(row->hidden, 2);
        row->hidden += 4 + size;
        row->hidden_size -= 4 + size;
        if (is_it)
            return type == (mode & S_IFMT);
    }
    return 0;
}

/* Looks at all names of an open directory; packs them as encode_observations does.
 * Names that are hidden in its row, if there is one, are packed as zeros. Returns DIFFERS where all
 * is plain, LOOK or LOOK_BELOW where it is odd, -1 with errno set. */
static int look(int fd, const Rules *rules, Row *row, Scratch *scratch) {
    size_t count, reserved_size = strlen(rules->reserved_prefix);
    uint64_t there = 0;
    int result = DIFFERS;
    scratch->sorted.size = scratch->packed.size = scratch->directory_count = 0;
    scratch->has_ignore_file = 0;
    if (list_names(fd, scratch, &count) || reserve(&scratch->packed, HEAD_ROOM) ||
        reserve(&scratch->sorted, (count + 1) * sizeof(char *)))
        return -1;
    scratch->packed.size = HEAD_ROOM;
    char **names = (char **)scratch->sorted.data, *name = scratch->names.data;
    for (size_t n = 0; n < count; n++, name += strlen(name) + 1)
        names[n] = name;
    qsort(names, count, sizeof(char *), compare_names);
    for (size_t n = 0; n < count; n++) {
        struct stat seen;
        name = names[n];
        if (fstatat(fd, name, &seen, AT_SYMLINK_NOFOLLOW)) {
            if (errno == ENOENT)
                continue;
            return LOOK_BELOW; /* Python looks again, and finds out what it is about */
        }
        if (strcmp(name, rules->ignore_file) == 0) {
            struct stat own; /* where many may make names, whose it is counts: Python decides */
            if (row == NULL || fstat(fd, &own) || own.st_mode & S_ISVTX)
                return LOOK_BELOW;
            scratch->has_ignore_file = 1;
        }
        int is_left_out = is_hidden(row, name, seen.st_mode);
        if (is_left_out)
            memset(&seen, 0, sizeof seen);
        if (put_observation(&scratch->packed, name, &seen))
            return LOOK_BELOW;
        there++;
        if (is_left_out)
            continue;
        if (strncmp(name, rules->reserved_prefix, reserved_size) == 0) {
            result = LOOK;
            continue; /* ours, and never entered */
        }
        size_t counted = first_from(rules->inodes, rules->inode_count, seen.st_ino);
        if ((!S_ISDIR(seen.st_mode) && seen.st_nlink > 1) ||
            (counted < rules->inode_count &&
             little_endian(rules->inodes + 8 * counted, 8) == seen.st_ino))
            result = LOOK;
        if (S_ISDIR(seen.st_mode))
            names[scratch->directory_count++] = name;
    }
    scratch->begin = put_head(&scratch->packed, there);
    return result;
}

/* ---- the rows of a cache -------------------------------------------------------------------- */

typedef struct {
    const unsigned char *data;
    size_t size, table, count; /* the hashes begin at `table`; the offsets follow */
} CacheFile;

/* Finds a directory's row; returns whether there is one that is whole. */
static int find_row(const CacheFile *file, const char *path, size_t path_size, Row *row) {
    const unsigned char *hashes = file->data + file->table;
    uint64_t hash = path_hash(path, path_size);
    size_t at = first_from(hashes, file->count, hash);
    for (; at < file->count && little_endian(hashes + 8 * at, 8) == hash; at++) {
        uint64_t offset = little_endian(hashes + 8 * (file->count + at), 8);
        if (offset > file->size || file->size - offset < FRAME_SIZE + HEAD_SIZE)
            continue;
        const unsigned char *payload = file->data + offset + FRAME_SIZE;
        uint64_t length = little_endian(payload - FRAME_SIZE, 4);
        if (length < HEAD_SIZE || length > file->size - offset - FRAME_SIZE ||
            little_endian(payload - 4, 4) != crc32_of(payload, length))
            continue;
        uint64_t named = little_endian(payload + 1, 4), observed = little_endian(payload + 5, 4);
        uint64_t hidden = little_endian(payload + 9, 4);
        if (named != path_size || named + observed + hidden > length - HEAD_SIZE ||
            memcmp(payload + HEAD_SIZE, path, path_size) != 0)
            continue;
        const unsigned char *observations = payload + HEAD_SIZE + named;
        *row = (Row){payload[0], observations, observations + observed, observed, hidden};
        return 1;
    }
    return 0;
}

/* ---- the comparison ------------------------------------------------------------------------------ */

typedef struct Node {
    struct Node *parent, *next;
    int fd;    /* open as long as a subdirectory is still to be opened */
    int users; /* subdirectories that are not opened yet, and whoever looks at it */
    int depth;
    size_t path_size, name_at;
    char path[];
} Node;

typedef struct {
    int root_fd;
    Rules rules;
    CacheFile files[2]; /* the rows of the first go before those of the second */

    pthread_mutex_t lock; /* over all below */
    pthread_cond_t changed;
    Node *pending;
    int busy, is_stopped, is_out_of_memory;
    Buffer reports; /* kind u8, sizes u32 and u32, a path, what was packed; and so on */
} Comparison;

static void stop(Comparison *comparison) {
    comparison->is_stopped = 1;
    pthread_cond_broadcast(&comparison->changed);
}

static void stop_without_memory(Comparison *comparison) {
    comparison->is_out_of_memory = 1;
    stop(comparison);
}

static void report(Comparison *comparison, int kind, const Node *node, const Scratch *scratch) {
    Buffer *to = &comparison->reports;
    if (kind == DIFFERS && to->size > BROUGHT_MAX)
        kind = LOOK;
    uint32_t packed = kind == DIFFERS ? (uint32_t)(scratch->packed.size - scratch->begin) : 0;
    uint32_t named = (uint32_t)node->path_size;
    if (reserve(to, 1 + 2 * sizeof(uint32_t) + named + packed)) {
        stop_without_memory(comparison);
        return;
    }
    to->data[to->size++] = (char)kind;
    put(to, &named, sizeof named);
    put(to, &packed, sizeof packed);
    put(to, node->path, named);
    if (packed)
        put(to, scratch->packed.data + scratch->begin, packed);
}

static Node *make_node(Node *parent, const char *name) {
    size_t above = parent != NULL ? parent->path_size : 0, length = strlen(name);
    Node *node = malloc(sizeof(Node) + above + length + 2);
    if (node == NULL)
        return NULL;
    *node = (Node){.parent = parent, .fd = -1, .users = 1, .depth = parent ? parent->depth + 1 : 0};
    if (above) {
        memcpy(node->path, parent->path, above);
        node->path[above++] = '/';
    }
    memcpy(node->path + above, name, length + 1);
    node->name_at = above;
    node->path_size = above + length;
    return node;
}

/* Gives up one use of a directory. */
static void release(Node *node) {
    if (node != NULL && --node->users == 0) {
        if (node->fd >= 0)
            close(node->fd);
        free(node);
    }
}

/* Looks at one directory and compares it with its row. Called without the lock, returns with it. */
static void visit(Comparison *comparison, Node *node, Scratch *scratch) {
    Row row;
    int kind = WHOLE;
    Node *parent = node->parent;
    const char *name = parent != NULL ? node->path + node->name_at : ".";
    /* What has no row is not opened: it may be a mount point, and none is to be mounted now. */
    int has_row = find_row(&comparison->files[0], node->path, node->path_size, &row) ||
                  find_row(&comparison->files[1], node->path, node->path_size, &row);
    int fd = !has_row ? -1 : openat(parent != NULL ? parent->fd : comparison->root_fd, name,
                                    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    scratch->directory_count = 0;
    if (fd >= 0) {
        kind = look(fd, &comparison->rules, &row, scratch);
        if (kind < 0)
            kind = WHOLE;
        else if (kind == DIFFERS && row.flags & MUST_BE_LOOKED_AT)
            kind = LOOK;
    }
    int is_same = kind == DIFFERS && row.size == scratch->packed.size - scratch->begin &&
                  memcmp(row.observations, scratch->packed.data + scratch->begin, row.size) == 0;
    if (kind != WHOLE && scratch->has_ignore_file) {
        kind = is_same ? LOOK : LOOK_BELOW; /* what it excludes may have changed */
        is_same = 0; /* its rules are noted in any case */
    }
    size_t count = kind == DIFFERS || kind == LOOK ? scratch->directory_count : 0;

    pthread_mutex_lock(&comparison->lock);
    release(parent);
    node->parent = NULL;
    node->fd = fd;
    if (!is_same)
        report(comparison, kind, node, scratch);
    for (size_t n = 0; n < count && !comparison->is_stopped; n++) {
        Node *child = make_node(node, ((char **)scratch->sorted.data)[n]);
        if (child == NULL) {
            stop_without_memory(comparison);
        } else if (node->depth >= DEPTH_MAX) {
            report(comparison, LOOK_BELOW, child, scratch);
            release(child);
        } else {
            node->users++;
            child->next = comparison->pending;
            comparison->pending = child;
        }
    }
    if (count > 1)
        pthread_cond_broadcast(&comparison->changed);
    release(node);
}

static int64_t now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Takes directories from the stack until all are looked at; `state` is that of the calling thread. */
static void work(Comparison *comparison, PyThreadState **state) {
    Scratch *scratch = calloc(1, sizeof(Scratch));
    int64_t last_ns = now_ns(CLOCK_MONOTONIC);
    pthread_mutex_lock(&comparison->lock);
    if (scratch == NULL)
        stop_without_memory(comparison);
    while (!comparison->is_stopped && (comparison->pending != NULL || comparison->busy)) {
        Node *node = comparison->pending;
        if (node != NULL) {
            comparison->pending = node->next;
            comparison->busy++;
            pthread_mutex_unlock(&comparison->lock);
            visit(comparison, node, scratch);
            if (--comparison->busy == 0 && comparison->pending == NULL)
                pthread_cond_broadcast(&comparison->changed);
        } else {
            int64_t until_ns = now_ns(CLOCK_REALTIME) + HANDLERS_EVERY_NS;
            struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
            pthread_cond_timedwait(&comparison->changed, &comparison->lock, &until);
        }
        if (state != NULL && now_ns(CLOCK_MONOTONIC) - last_ns > HANDLERS_EVERY_NS) {
            pthread_mutex_unlock(&comparison->lock);
            PyEval_RestoreThread(*state);
            int has_raised = PyErr_CheckSignals();
            *state = PyEval_SaveThread();
            last_ns = now_ns(CLOCK_MONOTONIC);
            pthread_mutex_lock(&comparison->lock);
            if (has_raised)
                stop(comparison);
        }
    }
    pthread_mutex_unlock(&comparison->lock);
    free_scratch(scratch);
}

static void *work_beside(void *comparison) {
    work(comparison, NULL);
    return NULL;
}

/* Walks with the interpreter released; returns whether a handler raised. */
static int run_comparison(Comparison *comparison, int threads) {
    pthread_t other;
    sigset_t all, before;
    PyThreadState *state = PyEval_SaveThread();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int is_started = threads > 1 && pthread_create(&other, NULL, work_beside, comparison) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    work(comparison, &state);
    if (is_started)
        pthread_join(other, NULL);
    while (comparison->pending != NULL) { /* it was stopped */
        Node *node = comparison->pending;
        comparison->pending = node->next;
        release(node->parent);
        release(node);
    }
    PyEval_RestoreThread(state);
    return PyErr_Occurred() != NULL;
}

/* ---- what Python calls ------------------------------------------------------------------------ */

static PyObject *observe(PyObject *module, PyObject *arguments) {
    int fd, seen;
    Rules rules = {0};
    if (!PyArg_ParseTuple(arguments, "iyy", &fd, &rules.ignore_file, &rules.reserved_prefix))
        return NULL;
    Scratch *scratch = calloc(1, sizeof(Scratch));
    if (scratch == NULL)
        return PyErr_NoMemory();
    PyObject *result = NULL;
    Py_BEGIN_ALLOW_THREADS
    seen = look(fd, &rules, NULL, scratch);
    Py_END_ALLOW_THREADS /* which keeps errno */
    if (seen < 0)
        errno == ENOMEM ? PyErr_NoMemory() : PyErr_SetFromErrno(PyExc_OSError);
    else if (seen == DIFFERS)
        result = PyBytes_FromStringAndSize(scratch->packed.data + scratch->begin,
                                           (Py_ssize_t)(scratch->packed.size - scratch->begin));
    else
        result = Py_NewRef(Py_None);
    free_scratch(scratch);
    return result;
}

static int take_file(const Py_buffer *view, Py_ssize_t table, Py_ssize_t count, CacheFile *file) {
    if (table < 0 || count < 0 || table > view->len || count > (view->len - table) / 16) {
        PyErr_SetString(PyExc_ValueError, "the table is not within the file");
        return -1;
    }
    *file = (CacheFile){view->buf, (size_t)view->len, (size_t)table, (size_t)count};
    return 0;
}

static PyObject *compare(PyObject *module, PyObject *arguments) {
    Py_ssize_t tables[2], counts[2];
    Py_buffer views[2] = {0}, inodes = {0};
    PyObject *result = NULL;
    int threads;
    Comparison state = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    if (!PyArg_ParseTuple(arguments, "iyy(y*nn)(y*nn)y*i", &state.root_fd, &state.rules.ignore_file,
                          &state.rules.reserved_prefix, &views[0], &tables[0], &counts[0],
                          &views[1], &tables[1], &counts[1], &inodes, &threads))
        return NULL;
    state.rules.inodes = inodes.buf;
    state.rules.inode_count = (size_t)inodes.len / 8;
    if (take_file(&views[0], tables[0], counts[0], &state.files[0]) == 0 &&
        take_file(&views[1], tables[1], counts[1], &state.files[1]) == 0) {
        state.pending = make_node(NULL, "");
        state.is_out_of_memory = state.pending == NULL;
        int is_failed = !state.is_out_of_memory && run_comparison(&state, threads);
        if (!is_failed && state.is_out_of_memory)
            PyErr_NoMemory();
        else if (!is_failed)
            result = PyBytes_FromStringAndSize(state.reports.data, (Py_ssize_t)state.reports.size);
        free(state.reports.data);
    }
    PyBuffer_Release(&views[0]);
    PyBuffer_Release(&views[1]);
    PyBuffer_Release(&inodes);
    return result;
}

static int is_number(PyObject *value, long long least, long long most) {
    int is_wide;
    if (!PyLong_CheckExact(value))
        return 0;
    long long number = PyLong_AsLongLongAndOverflow(value, &is_wide);
    return !is_wide && least <= number && number <= most;
}

static int is_bytes(PyObject *value, Py_ssize_t least, Py_ssize_t most) {
    return PyBytes_CheckExact(value) && least <= PyBytes_Size(value) && PyBytes_Size(value) <= most;
}

static int is_name(PyObject *value) {
    if (!is_bytes(value, 1, NAME_SIZE_MAX))
        return 0;
    const char *name = PyBytes_AsString(value);
    size_t size = (size_t)PyBytes_Size(value);
    return strlen(name) == size && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..");
}

/* Whether a content is bytes or chunks, and covers a size. */
static int is_content(PyObject *value, long long left) {
    Py_ssize_t length = PyTuple_CheckExact(value) ? PyTuple_Size(value) : 0;
    if (length == 1 && left && left <= INLINE_SIZE_MAX)
        return is_bytes(PyTuple_GetItem(value, 0), left, left);
    if (length % 2 == 0 || length > CONTENT_LENGTH_MAX || !is_number(PyTuple_GetItem(value, 0), 0, 0))
        return 0;
    for (Py_ssize_t n = 1; n < length; n += 2) {
        PyObject *size = PyTuple_GetItem(value, n + 1);
        if (!is_bytes(PyTuple_GetItem(value, n), ID_SIZE, ID_SIZE) || !is_number(size, 1, left))
            return 0;
        left -= PyLong_AsLongLong(size);
    }
    return left == 0;
}

static int is_plain_entry(PyObject *const *field) {
    if (!is_number(field[2], 0, 07777) || !is_number(field[3], 0, UINT32_MAX - 1) ||
        !is_number(field[4], 0, UINT32_MAX - 1) || !PyLong_CheckExact(field[5]) ||
        !is_number(field[6], 0, INT64_MAX) || field[8] != Py_None)
        return 0;
    if (is_number(field[1], A_FILE, A_FILE))
        return is_content(field[7], PyLong_AsLongLong(field[6]));
    return is_number(field[1], A_DIRECTORY, A_DIRECTORY) && is_number(field[6], 0, 0) &&
           is_bytes(field[7], ID_SIZE, ID_SIZE);
}

static int is_plain_observation(PyObject *const *field) {
    for (int n = 2; n < OBSERVATION_WIDTH; n++)
        if (!PyLong_CheckExact(field[n]))
            return 0;
    return is_number(field[1], 0, UINT32_MAX);
}

/* Whether each of some decoded rows is one that needs no closer look. */
static PyObject *are_plain(PyObject *module, PyObject *arguments) {
    PyObject *rows, *field[ENTRY_WIDTH];
    Py_ssize_t width;
    if (!PyArg_ParseTuple(arguments, "O!n", &PyTuple_Type, &rows, &width))
        return NULL;
    int is_entry = width == ENTRY_WIDTH, is_plain = is_entry || width == OBSERVATION_WIDTH;
    const char *before = "";
    for (Py_ssize_t n = 0; is_plain && n < PyTuple_Size(rows); n++) {
        PyObject *row = PyTuple_GetItem(rows, n);
        if (!PyTuple_CheckExact(row) || PyTuple_Size(row) != width)
            Py_RETURN_FALSE;
        for (Py_ssize_t at = 0; at < width; at++)
            field[at] = PyTuple_GetItem(row, at);
        is_plain = is_name(field[0]) && strcmp(before, PyBytes_AsString(field[0])) < 0 &&
                   (is_entry ? is_plain_entry(field) : is_plain_observation(field));
        before = is_plain ? PyBytes_AsString(field[0]) : before;
    }
    return PyBool_FromLong(is_plain);
}

/* Makes a system call of a number with whole numbers, bytes, and bytearrays that it may fill. */
static PyObject *call(PyObject *module, PyObject *arguments) {
    long values[6] = {0}, result;
    for (Py_ssize_t n = 0; n < PyTuple_Size(arguments) && n < 6; n++) {
        PyObject *value = PyTuple_GetItem(arguments, n);
        values[n] = PyBytes_Check(value)       ? (long)PyBytes_AsString(value)
                    : PyByteArray_Check(value) ? (long)PyByteArray_AsString(value)
                                               : PyLong_AsLong(value);
    }
    if (PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    result = syscall(values[0], values[1], values[2], values[3], values[4], values[5]);
    Py_END_ALLOW_THREADS
    return result < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(result);
}

static PyMethodDef functions[] = {
    {"observe", observe, METH_VARARGS,
     "observe(fd, ignore_file, reserved_prefix) -> bytes | None\n\n"
     "Returns the packed observations of an open directory, or None where Python has to look."},
    {"compare", compare, METH_VARARGS,
     "compare(root_fd, ignore_file, reserved_prefix, recent, base, inodes, threads)\n\n"
     "Returns what to do about each directory that may differ from its row; see row_differences.py."},
    {"are_plain", are_plain, METH_VARARGS,
     "are_plain(rows, width) -> bool\n\nReturns whether decoded rows need no closer look."},
    {"call", call, METH_VARARGS, "call(number, *arguments) -> int\n\nMakes a system call."},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) {
    make_crc_table();
    return PyModule_AddIntConstant(module, "STATX", SYS_statx) |
           PyModule_AddIntConstant(module, "RENAMEAT2", SYS_renameat2) |
           PyModule_AddIntConstant(module, "SYNCFS", SYS_syncfs) |
           PyModule_AddIntConstant(module, "INTERFACE", 3);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Looks at directories; see native/_native.c.", 0,
    functions,             slots,     NULL,      NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
