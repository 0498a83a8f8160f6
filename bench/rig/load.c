// A closed-loop HTTP/1.1 load generator: one epoll thread, as many connections as asked for, each sends the next
// request when its last one is answered. Prints one line of JSON.
//
//   load -p PORT -u PATH (-b BODY | -g SESSIONS) -c CONNECTIONS (-d SECONDS | -n REQUESTS) [-H 'Name: value']...
//
//   -b FILE     the same body each time
//   -g FILE     conversations that grow by a turn a request; when one is at its end, its connection starts another.
//               FILE: a line "NUMBER_OFFSET TURN_END...", the body up to its last turn, a line feed, what closes it.
//               Eight digits at NUMBER_OFFSET become the conversation's number: no two begin alike.
//   -k NUMBER   the first conversation's number         -o TURN     the first turn to send of the first conversations
//   -w SECONDS  warming up, not in the latencies        -r MICROS   between the connections' starts
//   -T SECONDS  give up, counted from the end           -s          answers are streams; needs -e
//   -e CHUNKS   each stream has so many, else it is counted as short
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_LIMIT = 16384, EVENTS = 512, READ_SIZE = 262144, MARK_LIMIT = 40, MAX_TURNS = 4096, MAX_FAILURES = 1000 };

enum phase { CONNECTING, ANSWER_HEAD, ANSWER_BODY };
enum framing { SIZED, CHUNKED, UNTIL_CLOSE };
enum chunk_phase { CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER };

struct samples {
    float *us;
    size_t count, capacity;
};

struct connection {
    int fd;  // -1: closed
    enum phase phase;
    int watches_write;

    char *request;  // head and body; of a growing conversation: the connection's own
    size_t request_length, request_sent;
    int64_t conversation;  // its number
    size_t turn;

    char head[HEAD_LIMIT];
    size_t head_length;
    int status, close_after;
    enum framing framing;
    enum chunk_phase chunk_phase;
    int64_t left;
    char line[64];
    size_t line_length;

    uint64_t began;
    int64_t marks;  // chunks seen of this stream
    double delays_us;
    char mark[MARK_LIMIT];  // the beginning of a mark that the last read cut
    size_t mark_length;
};

static struct {
    int port, connections, streams, ramp_us;
    const char *path, *body_file, *sessions_file;
    char headers[8192];
    double seconds, warm_seconds, give_up_seconds;
    int64_t requests, chunks, first_conversation;
    size_t first_turn;
} options = {.path = "/v1/chat/completions",
             .connections = 1,
             .seconds = 5,
             .give_up_seconds = 60,
             .requests = -1,
             .chunks = -1};

static struct {
    char *bytes, *end;  // up to the last turn; what closes a body
    size_t end_length, number_offset, turns, turn_ends[MAX_TURNS];
} sessions;

static struct {
    char *request;
    size_t length;
} resent;

static struct samples latencies, first_bytes, chunk_delays, stream_delays;
static int64_t started, answered, measured, failed_connects, failed_statuses, cut, short_streams, marks_seen;
static int last_bad_status, epoll_fd, active;
static int64_t next_conversation;
static uint64_t warm_until, ends;
static struct sockaddr_in address;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void *checked(void *memory) {
    if (!memory) {
        perror("load");
        exit(1);
    }
    return memory;
}

// --- figures --------------------------------------------------------------------------------------------------------

static void add(struct samples *to, double us) {
    if (to->count == to->capacity) {
        to->capacity = to->capacity ? to->capacity * 2 : 4096;
        to->us = checked(realloc(to->us, to->capacity * sizeof *to->us));
    }
    to->us[to->count++] = (float)us;
}

static int compare(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void print_samples(const char *name, struct samples *of) {
    if (!of->count) return;
    qsort(of->us, of->count, sizeof *of->us, compare);
    const float *us = of->us;
    size_t n = of->count;
    printf(",\"%s\":{\"count\":%zu,\"min\":%.1f,\"p50\":%.1f,\"p99\":%.1f,\"max\":%.1f}", name, n, (double)us[0],
           (double)us[n / 2], (double)us[n * 99 / 100], (double)us[n - 1]);
}

// --- bodies ---------------------------------------------------------------------------------------------------------

static char *read_file(const char *name, size_t *length) {
    FILE *file = checked(fopen(name, "rb"));
    fseek(file, 0, SEEK_END);
    *length = (size_t)ftell(file);
    rewind(file);
    char *bytes = checked(malloc(*length + 1));
    if (fread(bytes, 1, *length, file) != *length) exit(1);
    bytes[*length] = 0;
    fclose(file);
    return bytes;
}

static size_t write_head(char *to, size_t body_length) {
    return (size_t)sprintf(to,
                           "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: bench\r\nAccept: */*\r\n"
                           "Content-Type: application/json\r\n%sContent-Length: %zu\r\n\r\n",
                           options.path, options.port, options.headers, body_length);
}

static void read_resent_body(void) {
    size_t length;
    char *body = read_file(options.body_file, &length);
    resent.request = checked(malloc(length + HEAD_LIMIT));
    resent.length = write_head(resent.request, length);
    memcpy(resent.request + resent.length, body, length);
    resent.length += length;
    free(body);
}

static void read_sessions(void) {
    size_t length;
    char *file = read_file(options.sessions_file, &length), *at = file;
    sessions.number_offset = strtoull(at, &at, 10);
    while (*at == ' ' && sessions.turns < MAX_TURNS) sessions.turn_ends[sessions.turns++] = strtoull(at, &at, 10);
    if (*at != '\n' || !sessions.turns) {
        fprintf(stderr, "load: %s is no file of sessions\n", options.sessions_file);
        exit(1);
    }
    sessions.bytes = at + 1;
    sessions.end = sessions.bytes + sessions.turn_ends[sessions.turns - 1] + 1;
    sessions.end_length = length - (size_t)(sessions.end - file);
}

static void write_next_turn(struct connection *c) {
    if (c->turn == sessions.turns) {
        c->turn = 0;
        c->conversation = next_conversation++;
    }
    size_t turns_length = sessions.turn_ends[c->turn++];
    size_t head_length = write_head(c->request, turns_length + sessions.end_length);
    char *body = c->request + head_length, number[9];
    memcpy(body, sessions.bytes, turns_length);
    memcpy(body + turns_length, sessions.end, sessions.end_length);
    snprintf(number, sizeof number, "%08u", (unsigned)c->conversation % 100000000u);
    memcpy(body + sessions.number_offset, number, 8);
    c->request_length = head_length + turns_length + sessions.end_length;
}

static void prepare(struct connection *c) {
    c->fd = -1;
    if (!options.sessions_file) {
        c->request = resent.request;
        c->request_length = resent.length;
        return;
    }
    c->request = checked(malloc(HEAD_LIMIT + sessions.turn_ends[sessions.turns - 1] + sessions.end_length));
    c->conversation = next_conversation++;
    c->turn = options.first_turn;
}

// --- the life of a connection ---------------------------------------------------------------------------------------

static int more_to_send(void) { return options.requests >= 0 ? started < options.requests : now() < ends; }

static void drop(struct connection *c) {
    close(c->fd);
    c->fd = -1;
    active--;
}

static void dial(struct connection *c) {
    if (!more_to_send() || failed_connects + cut >= MAX_FAILURES) return;
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    active++;
    c->phase = CONNECTING;
    c->watches_write = 1;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    int state = connect(c->fd, (struct sockaddr *)&address, sizeof address);
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
    if (state < 0 && errno != EINPROGRESS) {
        failed_connects++;
        drop(c);
    }
}

static void lose(struct connection *c, int64_t *count) {
    (*count)++;
    drop(c);
    dial(c);
}

static void watch_writable(struct connection *c, int wanted) {
    if (c->watches_write == wanted) return;
    c->watches_write = wanted;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0u), .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

static int send_rest(struct connection *c) {
    while (c->request_sent < c->request_length) {
        ssize_t n = send(c->fd, c->request + c->request_sent, c->request_length - c->request_sent, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno != EAGAIN) return -1;
            watch_writable(c, 1);
            return 0;
        }
        c->request_sent += (size_t)n;
    }
    watch_writable(c, 0);
    return 0;
}

static void start(struct connection *c) {
    if (!more_to_send()) {
        drop(c);
        return;
    }
    started++;
    if (options.sessions_file) write_next_turn(c);
    c->request_sent = c->head_length = c->mark_length = 0;
    c->marks = 0;
    c->delays_us = 0;
    c->phase = ANSWER_HEAD;
    c->began = now();
    if (send_rest(c) < 0) lose(c, &cut);
}

static void finish(struct connection *c) {
    uint64_t time = now();
    if (c->status == 200) {
        answered++;
        if (c->began >= warm_until) {
            add(&latencies, (double)(time - c->began) / 1e3);
            if (c->marks) add(&stream_delays, c->delays_us / (double)c->marks);
            if (options.requests >= 0 || time <= ends) measured++;
        }
        if (options.chunks >= 0 && c->marks != options.chunks) short_streams++;
    } else {
        failed_statuses++;
        last_bad_status = c->status;
    }
    if (c->close_after) {
        drop(c);
        dial(c);
    } else {
        start(c);
    }
}

// --- reading an answer ----------------------------------------------------------------------------------------------

static void see_mark(struct connection *c, uint64_t sent, uint64_t time) {
    double delay = time > sent ? (double)(time - sent) / 1e3 : 0;
    if (c->began >= warm_until) {
        add(&chunk_delays, delay);
        if (!c->marks) add(&first_bytes, (double)(time - c->began) / 1e3);
    }
    c->delays_us += delay;
    c->marks++;
    marks_seen++;
}

// Finds the upstream's "@<ns>@" marks, also where two reads share one.
static void see(struct connection *c, const char *bytes, size_t n) {
    static char text[MARK_LIMIT + READ_SIZE + 1];
    uint64_t time = now();
    memcpy(text, c->mark, c->mark_length);
    memcpy(text + c->mark_length, bytes, n);
    char *end = text + c->mark_length + n, *at = text;
    *end = 0;
    c->mark_length = 0;
    while ((at = memchr(at, '@', (size_t)(end - at)))) {
        char *digits_end;
        uint64_t sent = strtoull(at + 1, &digits_end, 10);
        if (digits_end == end) {
            size_t kept = (size_t)(end - at);
            if (kept >= MARK_LIMIT) return;
            memcpy(c->mark, at, kept);
            c->mark_length = kept;
            return;
        }
        if (*digits_end == '@' && digits_end - at > 8) {
            see_mark(c, sent, time);
            at = digits_end + 1;
        } else {
            at++;
        }
    }
}

// Takes bytes of an answer's head, and returns how many. 0: the head is too long.
static size_t read_head(struct connection *c, const char *bytes, size_t n) {
    size_t room = sizeof c->head - 1 - c->head_length, taken = n < room ? n : room;
    memcpy(c->head + c->head_length, bytes, taken);
    c->head_length += taken;
    c->head[c->head_length] = 0;
    char *end = memmem(c->head, c->head_length, "\r\n\r\n", 4);
    if (!end) return taken;
    size_t length = (size_t)(end - c->head) + 4, used = taken - (c->head_length - length);
    c->head[length] = 0;
    c->head_length = 0;
    c->status = atoi(c->head + 9);
    if (c->status == 100) return used;
    const char *sized = strcasestr(c->head, "\r\ncontent-length:");
    int chunked = strcasestr(c->head, "\r\ntransfer-encoding: chunked") != NULL;
    c->close_after = strcasestr(c->head, "\r\nconnection: close") || !strncmp(c->head, "HTTP/1.0", 8);
    c->framing = chunked ? CHUNKED : sized ? SIZED : UNTIL_CLOSE;
    c->left = sized ? atoll(sized + 17) : 0;
    c->chunk_phase = CHUNK_SIZE;
    c->line_length = 0;
    c->phase = ANSWER_BODY;
    return used;
}

static size_t read_data(struct connection *c, const char *bytes, size_t n) {
    size_t taken = c->framing != UNTIL_CLOSE && n > (size_t)c->left ? (size_t)c->left : n;
    c->left -= (int64_t)taken;
    if (options.streams) see(c, bytes, taken);
    return taken;
}

// Takes one byte of a chunked body's framing. 1: it was the body's last.
static int read_framing(struct connection *c, char byte) {
    if (c->line_length < sizeof c->line - 1) c->line[c->line_length++] = byte;
    if (byte != '\n') return 0;
    c->line[c->line_length] = 0;
    size_t length = c->line_length;
    c->line_length = 0;
    if (c->chunk_phase == TRAILER) return length <= 2;
    if (c->chunk_phase == CHUNK_END) {
        c->chunk_phase = CHUNK_SIZE;
    } else {
        c->left = strtoll(c->line, NULL, 16);
        c->chunk_phase = c->left ? CHUNK_DATA : TRAILER;
    }
    return 0;
}

static void feed(struct connection *c, const char *bytes, size_t n) {
    while (n) {
        size_t used;
        int last = 0;
        if (c->phase == ANSWER_HEAD) {
            used = read_head(c, bytes, n);
            if (!used) {
                lose(c, &cut);
                return;
            }
            last = c->phase == ANSWER_BODY && c->framing == SIZED && !c->left;
        } else if (c->framing == CHUNKED && c->chunk_phase != CHUNK_DATA) {
            used = 1;
            last = read_framing(c, *bytes);
        } else {
            used = read_data(c, bytes, n);
            if (c->framing == CHUNKED && !c->left) c->chunk_phase = CHUNK_END;
            last = c->framing == SIZED && !c->left;
        }
        if (last) {
            finish(c);  // what may follow belongs to no request
            return;
        }
        bytes += used;
        n -= used;
    }
}

// --- the loop -------------------------------------------------------------------------------------------------------

static void serve(struct connection *c, uint32_t events) {
    static char bytes[READ_SIZE];
    if (c->phase == CONNECTING) {
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error) {
            lose(c, &failed_connects);
        } else {
            start(c);
        }
        return;
    }
    if (events & EPOLLOUT && send_rest(c) < 0) {
        lose(c, &cut);
        return;
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);
    if (n > 0) {
        feed(c, bytes, (size_t)n);
    } else if (n == 0 && c->phase == ANSWER_BODY && c->framing == UNTIL_CLOSE) {
        c->close_after = 1;
        finish(c);
    } else if (n == 0 || errno != EAGAIN) {
        lose(c, &cut);
    }
}

static int read_options(int argc, char **argv) {
    int option;
    while ((option = getopt(argc, argv, "p:u:b:g:c:d:n:H:k:o:w:r:T:se:")) > 0) {
        switch (option) {
            case 'p': options.port = atoi(optarg); break;
            case 'u': options.path = optarg; break;
            case 'b': options.body_file = optarg; break;
            case 'g': options.sessions_file = optarg; break;
            case 'c': options.connections = atoi(optarg); break;
            case 'd': options.seconds = atof(optarg); break;
            case 'n': options.requests = atoll(optarg); break;
            case 'k': options.first_conversation = atoll(optarg); break;
            case 'o': options.first_turn = (size_t)atoll(optarg); break;
            case 'w': options.warm_seconds = atof(optarg); break;
            case 'r': options.ramp_us = atoi(optarg); break;
            case 'T': options.give_up_seconds = atof(optarg); break;
            case 's': options.streams = 1; break;
            case 'e': options.chunks = atoll(optarg); break;
            case 'H':
                if (strlen(options.headers) + strlen(optarg) + 3 > sizeof options.headers) return 0;
                strcat(strcat(options.headers, optarg), "\r\n");
                break;
            default: return 0;
        }
    }
    return options.port && (options.body_file || options.sessions_file);
}

int main(int argc, char **argv) {
    if (!read_options(argc, argv)) {
        fprintf(stderr, "load: see the comment that begins load.c\n");
        return 2;
    }
    struct rlimit files = {65536, 65536};
    signal(SIGPIPE, SIG_IGN);
    setrlimit(RLIMIT_NOFILE, &files);
    next_conversation = options.first_conversation;
    if (options.sessions_file) {
        read_sessions();
    } else {
        read_resent_body();
    }
    struct connection *all = checked(calloc((size_t)options.connections, sizeof *all));
    for (int i = 0; i < options.connections; i++) prepare(&all[i]);
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)options.port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    epoll_fd = epoll_create1(0);

    uint64_t began = now(), next_dial = began;
    warm_until = began + (uint64_t)(options.warm_seconds * 1e9);
    ends = warm_until + (uint64_t)(options.seconds * 1e9);
    uint64_t give_up = (options.requests >= 0 ? began : ends) + (uint64_t)(options.give_up_seconds * 1e9);
    int dialed = 0, peak = 0, timed_out = 0;
    struct epoll_event ready[EVENTS];
    while (active > 0 || (dialed < options.connections && more_to_send())) {
        uint64_t time = now();
        if (time > give_up) {
            timed_out = 1;
            break;
        }
        while (dialed < options.connections && time >= next_dial) {
            dial(&all[dialed++]);
            next_dial += (uint64_t)options.ramp_us * 1000;
        }
        if (active > peak) peak = active;
        int n = epoll_wait(epoll_fd, ready, EVENTS, dialed < options.connections ? 1 : 20);
        for (int i = 0; i < n; i++) {
            struct connection *c = ready[i].data.ptr;
            if (c->fd >= 0) serve(c, ready[i].events);
        }
    }
    double elapsed = options.requests >= 0 ? (double)(now() - began) / 1e9 : options.seconds;
    printf("{\"answered\":%lld,\"per_second\":%.1f,\"peak\":%d,\"failed_connects\":%lld,\"failed_statuses\":%lld,"
           "\"last_bad_status\":%d,\"cut\":%lld,\"short_streams\":%lld,\"timed_out\":%d,\"chunks\":%lld",
           (long long)answered, (double)measured / elapsed, peak, (long long)failed_connects,
           (long long)failed_statuses, last_bad_status, (long long)cut, (long long)short_streams, timed_out,
           (long long)marks_seen);
    print_samples("latency_us", &latencies);
    print_samples("first_byte_us", &first_bytes);
    print_samples("chunk_delay_us", &chunk_delays);
    print_samples("stream_delay_us", &stream_delays);
    printf("}\n");
    return 0;
}
