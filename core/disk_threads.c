/*
 * Threads that write and sync files without the interpreter; optional (see core/host.py).
 *
 * A write is submitted by a thread that has the interpreter's lock. One of the threads here writes its buffers to the
 * file, syncs the file, and signals an eventfd; none of that needs the lock, so it neither waits for the event loop
 * nor holds it up. The event loop, which watches the eventfd, fetches the results with finished().
 *
 * Each thread runs one write at a time, so a sync that hangs holds up its own thread only. The thread that became idle
 * last is woken first, because its caches are warm. There is no limit here for how many writes wait.
 *
 * Only the stable ABI of Python 3.11 is used. Linux only.
 */
#define _GNU_SOURCE
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define STACK_BYTES (256 * 1024)

/* One write and sync. It belongs to one thread at a time: submitter, worker, then the caller of finished(). */
struct write {
	struct write *next;
	PyObject *token;
	int fd;
	off_t offset;
	int error;      /* an errno, or 0 */
	int is_written; /* whether all was written, so that an error is that of the sync */
	int64_t sync_ns;
	Py_ssize_t count;
	struct iovec *vectors;
	Py_buffer views[];
};

struct queue {
	struct write *first, **last;
};

struct worker {
	struct worker *next;
	pthread_cond_t wake;
	struct write *write; /* what it was woken for */
	struct pool *pool;
};

/* Freed by the last of its users: the Python object and the threads. */
struct pool {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct worker *idle; /* the thread that became idle last comes first */
	struct queue waiting, finished;
	int signal_fd;
	int threads, threads_max;
	int unfinished;
	int users;
	int is_closing;
};

static void put(struct queue *queue, struct write *write)
{
	write->next = NULL;
	*queue->last = write;
	queue->last = &write->next;
}

static struct write *take(struct queue *queue)
{
	struct write *write = queue->first;

	if (write) {
		queue->first = write->next;
		if (!queue->first)
			queue->last = &queue->first;
	}
	return write;
}

/* Called with the lock held, which it gives back. */
static void leave(struct pool *pool)
{
	int is_last = --pool->users == 0;

	pthread_mutex_unlock(&pool->lock);
	if (is_last) {
		close(pool->signal_fd);
		pthread_cond_destroy(&pool->changed);
		pthread_mutex_destroy(&pool->lock);
		free(pool);
	}
}

/* --- what runs without the interpreter's lock */

static int64_t now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void write_and_sync(struct write *write)
{
	struct iovec *vector = write->vectors;
	Py_ssize_t count = write->count;
	off_t offset = write->offset;
	int64_t started_ns;

	for (;;) {
		ssize_t written;

		while (count && !vector->iov_len) {
			vector++;
			count--;
		}
		if (!count)
			break;
		written = pwritev(write->fd, vector, count < IOV_MAX ? (int)count : IOV_MAX, offset);
		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0) {
			write->error = written ? errno : EIO;
			return;
		}
		offset += written;
		while (count && (size_t)written >= vector->iov_len) {
			written -= vector->iov_len;
			vector++;
			count--;
		}
		if (count) {
			vector->iov_base = (char *)vector->iov_base + written;
			vector->iov_len -= written;
		}
	}
	write->is_written = 1;
	started_ns = now_ns();
	/* Once only: after a failed sync the system may take lost data for written. */
	if (fdatasync(write->fd))
		write->error = errno;
	write->sync_ns = now_ns() - started_ns;
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	struct pool *pool = worker->pool;

	pthread_mutex_lock(&pool->lock);
	for (;;) {
		struct write *write = worker->write;

		worker->write = NULL;
		if (!write)
			write = take(&pool->waiting);
		if (write) {
			int is_first;

			pthread_mutex_unlock(&pool->lock);
			write_and_sync(write);
			pthread_mutex_lock(&pool->lock);
			is_first = !pool->finished.first;
			put(&pool->finished, write);
			pool->unfinished--;
			if (is_first) /* one signal serves all that finish before they are fetched */
				eventfd_write(pool->signal_fd, 1);
			if (pool->is_closing)
				pthread_cond_broadcast(&pool->changed);
			continue;
		}
		if (pool->is_closing)
			break;
		worker->next = pool->idle;
		pool->idle = worker;
		while (!worker->write && !pool->is_closing)
			pthread_cond_wait(&worker->wake, &pool->lock);
	}
	pool->threads--;
	pthread_cond_broadcast(&pool->changed);
	pthread_cond_destroy(&worker->wake);
	free(worker);
	leave(pool);
	return NULL;
}

/* Called with the lock held. Return an errno, or 0. */
static int start_thread(struct pool *pool, struct write *write)
{
	struct worker *worker = calloc(1, sizeof *worker);
	pthread_attr_t attributes;
	sigset_t all, before;
	pthread_t thread;
	int error;

	if (!worker)
		return ENOMEM;
	worker->write = write;
	worker->pool = pool;
	pthread_cond_init(&worker->wake, NULL);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	sigfillset(&all); /* signals are for the threads of the interpreter */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, &attributes, work, worker);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	if (error) {
		pthread_cond_destroy(&worker->wake);
		free(worker);
		return error;
	}
	pool->threads++;
	pool->users++;
	return 0;
}

static int submit_write(struct pool *pool, struct write *write)
{
	struct worker *worker;
	int error = 0;

	pthread_mutex_lock(&pool->lock);
	worker = pool->idle;
	if (pool->is_closing) {
		error = ECANCELED;
	} else if (worker) {
		pool->idle = worker->next;
		worker->write = write;
	} else {
		if (pool->threads < pool->threads_max)
			error = start_thread(pool, write);
		else
			put(&pool->waiting, write);
		if (error && pool->threads) { /* the threads there are will do it */
			put(&pool->waiting, write);
			error = 0;
		}
	}
	pool->unfinished += !error;
	pthread_mutex_unlock(&pool->lock);
	/* Not under the lock, for which the woken thread would wait. It can't have ended: close() needs the interpreter. */
	if (worker && !error)
		pthread_cond_signal(&worker->wake);
	return error;
}

static void close_pool(struct pool *pool)
{
	struct worker *worker;

	pthread_mutex_lock(&pool->lock);
	while (pool->unfinished) {
		pool->is_closing = 1;
		pthread_cond_wait(&pool->changed, &pool->lock);
	}
	pool->is_closing = 1;
	for (worker = pool->idle; worker; worker = worker->next)
		pthread_cond_signal(&worker->wake);
	while (pool->threads)
		pthread_cond_wait(&pool->changed, &pool->lock);
	pool->idle = NULL;
	pthread_mutex_unlock(&pool->lock);
}

/* --- the Python object */

struct disk_threads {
	PyObject_HEAD
	struct pool *pool;
};

static void free_write(struct write *write)
{
	Py_ssize_t n;

	for (n = 0; n < write->count; n++)
		PyBuffer_Release(&write->views[n]);
	Py_XDECREF(write->token);
	free(write->vectors);
	free(write);
}

static PyObject *new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "threads_max", NULL };
	allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	struct disk_threads *self;
	struct pool *pool;
	int threads_max;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i", names, &threads_max))
		return NULL;
	if (threads_max < 1)
		return PyErr_Format(PyExc_ValueError, "threads_max has to be at least 1, not %d", threads_max);
	self = (struct disk_threads *)allocate(type, 0);
	if (!self)
		return NULL;
	pool = calloc(1, sizeof *pool);
	if (!pool) {
		Py_DECREF(self);
		return PyErr_NoMemory();
	}
	pool->signal_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (pool->signal_fd < 0) {
		free(pool);
		Py_DECREF(self);
		return PyErr_SetFromErrno(PyExc_OSError);
	}
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->changed, NULL);
	pool->waiting.last = &pool->waiting.first;
	pool->finished.last = &pool->finished.first;
	pool->threads_max = threads_max;
	pool->users = 1;
	self->pool = pool;
	return (PyObject *)self;
}

static void dealloc(struct disk_threads *self)
{
	PyTypeObject *type = Py_TYPE((PyObject *)self);
	freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
	struct pool *pool = self->pool;

	if (pool) {
		struct write *write;

		Py_BEGIN_ALLOW_THREADS
		close_pool(pool);
		Py_END_ALLOW_THREADS
		while ((write = take(&pool->finished)))
			free_write(write);
		pthread_mutex_lock(&pool->lock);
		leave(pool);
	}
	release(self);
	Py_DECREF(type);
}

static PyObject *fileno_(struct disk_threads *self, PyObject *unused)
{
	(void)unused;
	return PyLong_FromLong(self->pool->signal_fd);
}

static PyObject *submit(struct disk_threads *self, PyObject *args)
{
	PyObject *token, *buffers, *sequence;
	struct write *write;
	long long offset;
	Py_ssize_t count;
	int fd, error;

	if (!PyArg_ParseTuple(args, "OiLO", &token, &fd, &offset, &buffers))
		return NULL;
	sequence = PySequence_List(buffers);
	if (!sequence)
		return NULL;
	count = PyList_Size(sequence);
	write = calloc(1, sizeof *write + count * sizeof(Py_buffer));
	if (write)
		write->vectors = calloc(count ? count : 1, sizeof *write->vectors);
	if (!write || !write->vectors) {
		free(write);
		Py_DECREF(sequence);
		return PyErr_NoMemory();
	}
	Py_INCREF(token);
	write->token = token;
	write->fd = fd;
	write->offset = offset;
	for (; write->count < count; write->count++) {
		Py_buffer *view = &write->views[write->count];

		if (PyObject_GetBuffer(PyList_GetItem(sequence, write->count), view, PyBUF_SIMPLE)) {
			free_write(write);
			Py_DECREF(sequence);
			return NULL;
		}
		write->vectors[write->count].iov_base = view->buf;
		write->vectors[write->count].iov_len = view->len;
	}
	Py_DECREF(sequence);
	error = submit_write(self->pool, write);
	if (error) {
		free_write(write);
		errno = error;
		return PyErr_SetFromErrno(PyExc_OSError);
	}
	Py_RETURN_NONE;
}

static PyObject *finished(struct disk_threads *self, PyObject *unused)
{
	struct pool *pool = self->pool;
	struct write *write, *next;
	PyObject *results = PyList_New(0);
	eventfd_t signals;

	(void)unused;
	if (!results)
		return NULL;
	eventfd_read(pool->signal_fd, &signals); /* before they are taken, so that those that finish later signal again */
	pthread_mutex_lock(&pool->lock);
	write = pool->finished.first;
	pool->finished.first = NULL;
	pool->finished.last = &pool->finished.first;
	pthread_mutex_unlock(&pool->lock);
	for (; write; write = next) {
		PyObject *result = Py_BuildValue("OiNL", write->token, write->error, PyBool_FromLong(write->is_written),
						 (long long)(write->sync_ns / 1000));

		next = write->next;
		if (!result || PyList_Append(results, result))
			PyErr_WriteUnraisable(write->token); /* out of memory */
		Py_XDECREF(result);
		free_write(write);
	}
	return results;
}

static PyObject *close_(struct disk_threads *self, PyObject *unused)
{
	(void)unused;
	Py_BEGIN_ALLOW_THREADS
	close_pool(self->pool);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
	{ "fileno", (PyCFunction)fileno_, METH_NOARGS, NULL },
	{ "submit", (PyCFunction)submit, METH_VARARGS, NULL },
	{ "finished", (PyCFunction)finished, METH_NOARGS, NULL },
	{ "close", (PyCFunction)close_, METH_NOARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_new, new },
	{ Py_tp_dealloc, dealloc },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

static PyType_Spec spec = {
	.name = "curbstone.core.disk_threads.DiskThreads",
	.basicsize = sizeof(struct disk_threads),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};

static int execute(PyObject *module)
{
	PyObject *type = PyType_FromSpec(&spec);
	int result = type ? PyModule_AddObjectRef(module, "DiskThreads", type) : -1;

	Py_XDECREF(type);
	return result;
}

static PyModuleDef_Slot module_slots[] = {
	{ Py_mod_exec, execute },
	{ 0, NULL },
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "disk_threads",
	.m_slots = module_slots,
};

PyMODINIT_FUNC PyInit_disk_threads(void)
{
	return PyModuleDef_Init(&module);
}
