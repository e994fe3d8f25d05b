/* Counts the calls that change a directory, and strikes at one of them. Loaded before the C library (LD_PRELOAD), so
   that it sees the calls of Python and of every extension, whatever thread makes them. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[4096];
static atomic_long n_calls;
static volatile struct weather { long delay, error; } *weather;
static long first;
static long period;
static int signal_number;
static int tears;

/* Strikes with a signal at call `at`, and if `every` is not 0 at every so many after it. A write that is torn has
   written half of its bytes by then; other calls have done nothing yet. */
void chaos_strike(const char *directory, long at, long every, int number, int is_torn) {
    snprintf(root, sizeof root, "%s", directory);
    first = at;
    period = every;
    signal_number = number;
    tears = is_torn;
}

/* Has all calls be as slow as somebody else says, or fail: who shares this memory may change that at any time. The
   delay is in microseconds; a disk that is full (ENOSPC) fails only calls that need room. */
void chaos_weather(void *shared) { weather = shared; }

long chaos_n_calls(void) { return n_calls; }

static int is_inside(int directory, const char *path) {
    char name[4096];
    char link[64];
    if (!root[0]) return 0;
    if (path && path[0] == '/') return !strncmp(path, root, strlen(root));
    if (directory == AT_FDCWD) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t n = readlink(link, name, sizeof name - 1);
    if (n < 0) return 0;
    name[n] = 0;
    return !strncmp(name, root, strlen(root));
}

/* Returns whether this call is one to strike at. */
static int is_struck(int directory, const char *path) {
    int before = errno;
    int inside = is_inside(directory, path);
    errno = before;
    if (!inside) return 0;
    long number = ++n_calls;
    return number == first || (period && number > first && (number - first) % period == 0);
}

/* Returns whether a call fails in this weather, and sets errno. */
static int fails(int directory, const char *path, int needs_room) {
    int before = errno;
    if (!weather || (!weather->delay && !weather->error) || !is_inside(directory, path)) {
        errno = before;
        return 0;
    }
    errno = before;
    if (weather->delay) usleep(weather->delay);
    if (!weather->error || (weather->error == ENOSPC && !needs_room)) return 0;
    errno = weather->error;
    return 1;
}

static void strike(void) {
    int before = errno;
    kill(getpid(), signal_number);
    errno = before;
}

static void at_call(int directory, const char *path) {
    if (is_struck(directory, path)) strike();
}

#define ORIGINAL(name) \
    static __typeof__(name) *original; \
    if (!original) original = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define OPEN(name, directory, ...) \
    ORIGINAL(name); \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list arguments; \
        va_start(arguments, flags); \
        mode = va_arg(arguments, mode_t); \
        va_end(arguments); \
    } \
    if (flags & (O_CREAT | O_TRUNC)) { \
        if (fails(directory, path, flags & O_CREAT)) return -1; \
        at_call(directory, path); \
    } \
    return original(__VA_ARGS__, flags, mode)

int open(const char *path, int flags, ...) { OPEN(open, AT_FDCWD, path); }
int open64(const char *path, int flags, ...) { OPEN(open64, AT_FDCWD, path); }
int openat(int directory, const char *path, int flags, ...) { OPEN(openat, directory, directory, path); }
int openat64(int directory, const char *path, int flags, ...) { OPEN(openat64, directory, directory, path); }

#define WRITE(name, ...) \
    ORIGINAL(name); \
    if (fails(file, NULL, 1)) return -1; \
    if (is_struck(file, NULL)) { \
        if (tears && n > 1) { \
            size_t whole = n; \
            n = whole / 2; \
            original(__VA_ARGS__); \
            strike(); \
            n = whole; \
        } else { \
            strike(); \
        } \
    } \
    return original(__VA_ARGS__)

ssize_t write(int file, const void *bytes, size_t n) { WRITE(write, file, bytes, n); }
ssize_t pwrite(int file, const void *bytes, size_t n, off_t offset) { WRITE(pwrite, file, bytes, n, offset); }
ssize_t pwrite64(int file, const void *bytes, size_t n, off64_t offset) { WRITE(pwrite64, file, bytes, n, offset); }

ssize_t writev(int file, const struct iovec *parts, int n) {
    ORIGINAL(writev);
    if (fails(file, NULL, 1)) return -1;
    if (is_struck(file, NULL)) {
        struct iovec half = {parts[0].iov_base, parts[0].iov_len / 2};
        if (tears) original(file, &half, 1);
        strike();
    }
    return original(file, parts, n);
}

#define PASS(name, directory, path, ...) PASS_IF(0, name, directory, path, __VA_ARGS__)
#define MAKE(name, directory, path, ...) PASS_IF(1, name, directory, path, __VA_ARGS__)
#define PASS_IF(needs_room, name, directory, path, ...) \
    ORIGINAL(name); \
    if (fails(directory, path, needs_room)) return -1; \
    at_call(directory, path); \
    return original(__VA_ARGS__)

ssize_t sendfile(int file, int from, off_t *offset, size_t n) { MAKE(sendfile, file, NULL, file, from, offset, n); }
ssize_t sendfile64(int file, int from, off64_t *offset, size_t n) {
    MAKE(sendfile64, file, NULL, file, from, offset, n);
}
ssize_t copy_file_range(int from, off64_t *a, int file, off64_t *b, size_t n, unsigned flags) {
    MAKE(copy_file_range, file, NULL, from, a, file, b, n, flags);
}
int ftruncate(int file, off_t n) { PASS(ftruncate, file, NULL, file, n); }
int ftruncate64(int file, off64_t n) { PASS(ftruncate64, file, NULL, file, n); }
int truncate(const char *path, off_t n) { PASS(truncate, AT_FDCWD, path, path, n); }
int mkdir(const char *path, mode_t mode) { MAKE(mkdir, AT_FDCWD, path, path, mode); }
int mkdirat(int directory, const char *path, mode_t mode) { MAKE(mkdirat, directory, path, directory, path, mode); }
int rmdir(const char *path) { PASS(rmdir, AT_FDCWD, path, path); }
int unlink(const char *path) { PASS(unlink, AT_FDCWD, path, path); }
int unlinkat(int directory, const char *path, int flags) { PASS(unlinkat, directory, path, directory, path, flags); }
int rename(const char *path, const char *to) { PASS(rename, AT_FDCWD, path, path, to); }
int renameat(int directory, const char *path, int other, const char *to) {
    PASS(renameat, directory, path, directory, path, other, to);
}
int renameat2(int directory, const char *path, int other, const char *to, unsigned flags) {
    PASS(renameat2, directory, path, directory, path, other, to, flags);
}
int link(const char *path, const char *to) { MAKE(link, AT_FDCWD, to, path, to); }
int linkat(int directory, const char *path, int other, const char *to, int flags) {
    MAKE(linkat, other, to, directory, path, other, to, flags);
}
int symlink(const char *path, const char *to) { MAKE(symlink, AT_FDCWD, to, path, to); }
int symlinkat(const char *path, int directory, const char *to) { MAKE(symlinkat, directory, to, path, directory, to); }

int fsync(int file) { PASS(fsync, file, NULL, file); }
int fdatasync(int file) { PASS(fdatasync, file, NULL, file); }
int syncfs(int file) { PASS(syncfs, file, NULL, file); }
