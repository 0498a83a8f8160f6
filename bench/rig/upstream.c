// A provider that costs next to nothing: one epoll thread on loopback, answers of fixed shape, bodies read and counted.
//
//   upstream PORT
//
// Any path is answered: /messages and /responses in their own words, everything else as a chat completion. Streams are
// paced by the clock, whatever their reader does; each chunk carries "@<CLOCK_MONOTONIC ns>@", so that a client on this
// machine can tell how long it was on the way. Input tokens are told as a quarter of the body's bytes.
// Control:  GET /__set?stream=0|1&chunks=N&interval_us=N   GET /__stats
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_LIMIT = 65536, EVENTS = 512, READ_SIZE = 262144 };

enum api { CHAT, MESSAGES, RESPONSES };
enum phase { READ_HEAD, READ_SIZED, READ_CHUNKED, ANSWER };
enum chunk_phase { CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER };

struct connection {
    int fd;
    enum phase phase;
    enum api api;
    int close_after;

    char head[HEAD_LIMIT];
    size_t head_length;
    int64_t body_left;
    uint64_t body_bytes;
    enum chunk_phase chunk_phase;
    char line[64];
    size_t line_length;

    char *out;
    size_t out_length, out_sent, out_capacity;
    int wants_write;

    int chunks_sent;  // of the stream being answered; -1: not even its head
    uint64_t due;     // when its next chunk is
    int queued;
    struct connection *next;
};

static int streaming, chunks = 50;
static int64_t interval_us;
static uint64_t requests, body_bytes, connections, chunks_written, aborts;
static int epoll_fd, timer_fd;
static struct connection *queue_first, *queue_last;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

// --- streams that wait for their next chunk, the earliest first -----------------------------------------------------

static void set_timer(void) {
    struct itimerspec when = {0};
    if (queue_first) {
        when.it_value.tv_sec = (time_t)(queue_first->due / 1000000000u);
        when.it_value.tv_nsec = (long)(queue_first->due % 1000000000u);
    }
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void enqueue(struct connection *c, uint64_t due) {
    c->due = due;
    c->next = NULL;
    c->queued = 1;
    if (!queue_first) {
        queue_first = queue_last = c;
        set_timer();
    } else if (due >= queue_last->due) {
        queue_last->next = c;
        queue_last = c;
    } else {
        struct connection **place = &queue_first;
        while (*place && (*place)->due <= due) place = &(*place)->next;
        c->next = *place;
        *place = c;
        if (queue_first == c) set_timer();
    }
}

static void dequeue(struct connection *c) {
    if (!c->queued) return;
    struct connection **place = &queue_first, *before = NULL;
    while (*place && *place != c) {
        before = *place;
        place = &(*place)->next;
    }
    if (*place) {
        *place = c->next;
        if (queue_last == c) queue_last = before;
    }
    c->queued = 0;
}

// --- writing --------------------------------------------------------------------------------------------------------

static void watch_writable(struct connection *c, int wanted) {
    if (c->wants_write == wanted) return;
    c->wants_write = wanted;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | (wanted ? EPOLLOUT : 0u), .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

static void drop(struct connection *c) {
    dequeue(c);
    if (c->phase == ANSWER) aborts++;
    close(c->fd);
    free(c->out);
    free(c);
}

// 1: all is out, 0: the socket is full, -1: the peer is gone.
static int flush(struct connection *c) {
    while (c->out_sent < c->out_length) {
        ssize_t n = send(c->fd, c->out + c->out_sent, c->out_length - c->out_sent, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno != EAGAIN) return -1;
            watch_writable(c, 1);
            return 0;
        }
        c->out_sent += (size_t)n;
    }
    c->out_length = c->out_sent = 0;
    watch_writable(c, 0);
    return 1;
}

static void put(struct connection *c, const char *bytes, size_t n) {
    if (c->out_length + n > c->out_capacity) {
        c->out_capacity = (c->out_length + n) * 2 + 1024;
        c->out = realloc(c->out, c->out_capacity);
        if (!c->out) abort();
    }
    memcpy(c->out + c->out_length, bytes, n);
    c->out_length += n;
}

static void put_chunk(struct connection *c, const char *bytes, size_t n) {
    char size[24];
    put(c, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", n));
    put(c, bytes, n);
    put(c, "\r\n", 2);
}

static void put_json(struct connection *c, const char *json, size_t n) {
    char head[128];
    put(c, head,
        (size_t)snprintf(head, sizeof head,
                         "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", n));
    put(c, json, n);
}

// --- what each API says; %llu is the number of input tokens ---------------------------------------------------------

#define TEXT "The quick brown fox jumps over the lazy dog. The answer is 42 and the tests now pass."

static const char *const ANSWERS[] = {
    [CHAT] = "{\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion\",\"created\":1790000000,\"model\":\"bench\","
             "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"" TEXT "\",\"refusal\":null},"
             "\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":%llu,"
             "\"completion_tokens\":21,\"total_tokens\":21},\"system_fingerprint\":\"fp_mock\"}",
    [MESSAGES] = "{\"id\":\"msg_mock\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"bench\","
                 "\"content\":[{\"type\":\"text\",\"text\":\"" TEXT "\"}],\"stop_reason\":\"end_turn\","
                 "\"stop_sequence\":null,\"usage\":{\"input_tokens\":%llu,\"output_tokens\":21}}",
    [RESPONSES] = "{\"id\":\"resp_mock\",\"object\":\"response\",\"created_at\":1790000000,\"status\":\"completed\","
                  "\"model\":\"bench\",\"output\":[{\"type\":\"message\",\"id\":\"msg_1\",\"status\":\"completed\","
                  "\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"" TEXT "\","
                  "\"annotations\":[]}]}],\"usage\":{\"input_tokens\":%llu,\"output_tokens\":21,\"total_tokens\":21}}",
};

static const char *const STREAM_STARTS[] = {
    [CHAT] = "data: {\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,"
             "\"model\":\"bench\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
             "\"finish_reason\":null}]}\n\n",
    [MESSAGES] = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_mock\","
                 "\"type\":\"message\",\"role\":\"assistant\",\"model\":\"bench\",\"content\":[],\"stop_reason\":null,"
                 "\"stop_sequence\":null,\"usage\":{\"input_tokens\":%llu,\"output_tokens\":1}}}\n\n"
                 "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,"
                 "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    [RESPONSES] = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,"
                  "\"response\":{\"id\":\"resp_mock\",\"object\":\"response\",\"status\":\"in_progress\","
                  "\"model\":\"bench\",\"output\":[]}}\n\n",
};

static const char *const STREAM_CHUNKS[] = {
    [CHAT] = "data: {\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,"
             "\"model\":\"bench\",\"system_fingerprint\":\"fp_mock\",\"choices\":[{\"index\":0,"
             "\"delta\":{\"content\":\" @%llu@\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
    [MESSAGES] = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,"
                 "\"delta\":{\"type\":\"text_delta\",\"text\":\" @%llu@\"}}\n\n",
    [RESPONSES] = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\","
                  "\"sequence_number\":1,\"item_id\":\"msg_1\",\"output_index\":0,\"content_index\":0,"
                  "\"delta\":\" @%llu@\"}\n\n",
};

static const char *const STREAM_ENDS[] = {
    [CHAT] = "data: {\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,"
             "\"model\":\"bench\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
             "data: {\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,"
             "\"model\":\"bench\",\"choices\":[],\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":21,"
             "\"total_tokens\":21}}\n\ndata: [DONE]\n\n",
    [MESSAGES] = "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n"
                 "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\","
                 "\"stop_sequence\":null},\"usage\":{\"output_tokens\":21}}\n\n"
                 "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    [RESPONSES] = "event: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":2,"
                  "\"response\":{\"id\":\"resp_mock\",\"object\":\"response\",\"status\":\"completed\","
                  "\"model\":\"bench\",\"output\":[],\"usage\":{\"input_tokens\":%llu,\"output_tokens\":21,"
                  "\"total_tokens\":21}}}\n\n",
};

#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-extra-args"
static size_t fill(char *text, size_t size, const char *template, uint64_t number) {
    return (size_t)snprintf(text, size, template, (unsigned long long)number);
}

// --- answering ------------------------------------------------------------------------------------------------------

// 0: the connection waits for its next request, -1: it is gone.
static int answered(struct connection *c) {
    c->phase = READ_HEAD;
    c->head_length = 0;
    if (!c->close_after) return 0;
    drop(c);
    return -1;
}

static int flushed(struct connection *c) {
    int state = flush(c);
    if (state < 0) drop(c);
    return state;
}

static int send_json(struct connection *c) {
    char text[2048];
    put_json(c, text, fill(text, sizeof text, ANSWERS[c->api], c->body_bytes / 4));
    c->chunks_sent = chunks + 1;
    int state = flushed(c);
    return state == 1 ? answered(c) : state;
}

// Sends what is due of a stream, and waits for the rest. -1: the connection is gone.
static int send_stream(struct connection *c) {
    char text[2048];
    for (;;) {
        if (c->chunks_sent < 0) {
            static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                                       "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";
            put(c, head, sizeof head - 1);
            put_chunk(c, text, fill(text, sizeof text, STREAM_STARTS[c->api], c->body_bytes / 4));
            c->chunks_sent = 0;
        }
        if (c->chunks_sent < chunks) {
            put_chunk(c, text, fill(text, sizeof text, STREAM_CHUNKS[c->api], now()));
            chunks_written++;
        } else {
            put_chunk(c, text, fill(text, sizeof text, STREAM_ENDS[c->api], c->body_bytes / 4));
            put(c, "0\r\n\r\n", 5);
        }
        c->chunks_sent++;
        int state = flushed(c);
        if (state != 1) return state;
        if (c->chunks_sent > chunks) return answered(c);
        if (interval_us) {
            enqueue(c, (c->due ? c->due : now()) + (uint64_t)interval_us * 1000);
            return 0;
        }
    }
}

static int begin_answer(struct connection *c) {
    requests++;
    c->phase = ANSWER;
    c->chunks_sent = -1;
    c->due = 0;
    return streaming ? send_stream(c) : send_json(c);
}

static int64_t parameter(const char *query, const char *name, int64_t otherwise) {
    const char *found = strstr(query, name);
    return found ? atoll(found + strlen(name)) : otherwise;
}

// Settings and counters, for the bench itself.
static int send_control(struct connection *c) {
    char *line_end = strstr(c->head, "\r\n");
    *line_end = 0;
    streaming = (int)parameter(c->head, "stream=", streaming);
    chunks = (int)parameter(c->head, "chunks=", chunks);
    interval_us = parameter(c->head, "interval_us=", interval_us);
    char json[256];
    int n = snprintf(json, sizeof json,
                     "{\"requests\":%llu,\"body_bytes\":%llu,\"connections\":%llu,\"chunks\":%llu,\"aborts\":%llu}",
                     (unsigned long long)requests, (unsigned long long)body_bytes, (unsigned long long)connections,
                     (unsigned long long)chunks_written, (unsigned long long)aborts);
    put_json(c, json, (size_t)n);
    int state = flushed(c);
    return state < 0 ? -1 : answered(c);
}

// --- reading --------------------------------------------------------------------------------------------------------

// Takes bytes of a request's head; sets `used` to how many. -1: the connection is gone.
static int read_head(struct connection *c, const char *bytes, size_t n, size_t *used) {
    size_t room = sizeof c->head - 1 - c->head_length, taken = n < room ? n : room;
    memcpy(c->head + c->head_length, bytes, taken);
    c->head_length += taken;
    c->head[c->head_length] = 0;
    *used = taken;
    char *end = memmem(c->head, c->head_length, "\r\n\r\n", 4);
    if (!end) {
        if (c->head_length < sizeof c->head - 1) return 0;
        drop(c);
        return -1;
    }
    size_t length = (size_t)(end - c->head) + 4;
    *used = taken - (c->head_length - length);
    c->head[length] = 0;
    char *line_end = strstr(c->head, "\r\n");
    *line_end = 0;
    c->api = strstr(c->head, "/messages") ? MESSAGES : strstr(c->head, "/responses") ? RESPONSES : CHAT;
    int control = strstr(c->head, " /__") != NULL;
    *line_end = '\r';
    c->close_after = strcasestr(c->head, "\r\nconnection: close") != NULL;
    if (control) return send_control(c);
    c->head_length = 0;
    c->body_bytes = 0;
    if (strcasestr(c->head, "\r\ntransfer-encoding: chunked")) {
        c->phase = READ_CHUNKED;
        c->chunk_phase = CHUNK_SIZE;
        c->line_length = 0;
        return 0;
    }
    const char *sized = strcasestr(c->head, "\r\ncontent-length:");
    c->body_left = sized ? atoll(sized + 17) : 0;
    c->phase = READ_SIZED;
    return c->body_left ? 0 : begin_answer(c);
}

static size_t read_data(struct connection *c, size_t n) {
    size_t taken = n < (size_t)c->body_left ? n : (size_t)c->body_left;
    c->body_left -= (int64_t)taken;
    c->body_bytes += taken;
    body_bytes += taken;
    return taken;
}

// Takes one byte of a chunked body's framing. -1: the connection is gone.
static int read_framing(struct connection *c, char byte) {
    if (c->line_length < sizeof c->line - 1) c->line[c->line_length++] = byte;
    if (byte != '\n') return 0;
    c->line[c->line_length] = 0;
    size_t length = c->line_length;
    c->line_length = 0;
    switch (c->chunk_phase) {
        case CHUNK_SIZE:
            c->body_left = strtoll(c->line, NULL, 16);
            c->chunk_phase = c->body_left ? CHUNK_DATA : TRAILER;
            return 0;
        case CHUNK_END:
            c->chunk_phase = CHUNK_SIZE;
            return 0;
        default:
            return length <= 2 ? begin_answer(c) : 0;
    }
}

// -1: the connection is gone.
static int feed(struct connection *c, const char *bytes, size_t n) {
    while (n) {
        size_t used = n;  // while answering: a pipelined request, which no client here sends
        int state = 0;
        if (c->phase == READ_HEAD) {
            state = read_head(c, bytes, n, &used);
        } else if (c->phase == READ_SIZED) {
            used = read_data(c, n);
            if (!c->body_left) state = begin_answer(c);
        } else if (c->phase == READ_CHUNKED && c->chunk_phase == CHUNK_DATA) {
            used = read_data(c, n);
            if (!c->body_left) c->chunk_phase = CHUNK_END;
        } else if (c->phase == READ_CHUNKED) {
            used = 1;
            state = read_framing(c, *bytes);
        }
        if (state < 0) return -1;
        bytes += used;
        n -= used;
    }
    return 0;
}

// --- the loop -------------------------------------------------------------------------------------------------------

static void accept_all(int listener) {
    int fd, on = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct connection *c = calloc(1, sizeof *c);
        if (!c) abort();
        c->fd = fd;
        connections++;
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

static void send_due(void) {
    uint64_t expirations, time = now();
    if (read(timer_fd, &expirations, sizeof expirations) < 0) return;
    while (queue_first && queue_first->due <= time) {
        struct connection *c = queue_first;
        queue_first = c->next;
        if (!queue_first) queue_last = NULL;
        c->queued = 0;
        send_stream(c);
    }
    set_timer();
}

// What could not be written at once is out now. -1: the connection is gone.
static int resume(struct connection *c) {
    int state = flushed(c);
    if (state != 1 || c->phase != ANSWER) return state;
    if (c->chunks_sent > chunks) return answered(c);
    if (!interval_us) return send_stream(c);
    enqueue(c, now() + (uint64_t)interval_us * 1000);
    return 0;
}

static void serve(struct connection *c, uint32_t events) {
    static char bytes[READ_SIZE];
    if (events & EPOLLOUT && c->wants_write && resume(c) < 0) return;
    if (events & EPOLLIN) {
        ssize_t n;
        do {
            n = recv(c->fd, bytes, sizeof bytes, 0);
            if (n < 0 && errno == EAGAIN) return;
            if (n <= 0) {
                drop(c);
                return;
            }
            if (feed(c, bytes, (size_t)n) < 0) return;
        } while (n == sizeof bytes);
    } else if (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) {
        drop(c);
    }
}

int main(int argc, char **argv) {
    struct rlimit files = {65536, 65536};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    if (argc != 2) return 2;
    address.sin_port = htons((uint16_t)atoi(argv[1]));
    signal(SIGPIPE, SIG_IGN);
    setrlimit(RLIMIT_NOFILE, &files);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) {
        perror("upstream");
        return 1;
    }
    epoll_fd = epoll_create1(0);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &listener};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event);
    event.data.ptr = &timer_fd;
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer_fd, &event);
    struct epoll_event ready[EVENTS];
    for (;;) {
        int n = epoll_wait(epoll_fd, ready, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            if (ready[i].data.ptr == &listener) {
                accept_all(listener);
            } else if (ready[i].data.ptr == &timer_fd) {
                send_due();
                break;  // it may have dropped connections that come later in this batch; the others come again
            } else {
                serve(ready[i].data.ptr, ready[i].events);
            }
        }
    }
}
