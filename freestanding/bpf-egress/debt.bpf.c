// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Debt at egress: how much CPU time a packet's sender has used, told to the emulator with the packet.
//
// `waking`, `wakeup`, `wakeup_new` and `burst` run at wake-ups and context switches and remember, for each thread of a node, when
// its present burst of work became possible: the instant at which it was woken after it had blocked. `debt` runs at the
// egress of a node's NIC, in the context of the sender, and appends a trailer to the frame. The emulator reads and
// removes it. It also tells when the frame left, by which it enters the network, whoever sent it.
//
// A frame that is still to be cut into segments, by the emulator or by the kernel, can't carry a trailer: longer it would
// be cut no more. Its trailer is put into the map `large`, under what the emulator knows it by.
//
// The trailer's 16-bit words sum to 0xffff, which is zero in ones' complement arithmetic: a checksum that the kernel
// computes after this program, over the whole packet, does not change, wherever the trailer begins. A capture inside
// the node shows it behind the IP packet.
//
// A thread's CPU time is `sum_exec_runtime`, as of `exec_start`, plus what has passed since. `exec_start` is on the
// run queue's clock, which BPF can't read; at a switch to the thread it has just been set, so that `burst` learns the
// distance of that clock to CLOCK_MONOTONIC.
//
// How work grows with the sleep before it is learned from counts that `burst` keeps for each node: how many bursts there
// were, and how much CPU time they took, by what the thread had waited for and by how long its process had not run: what
// another process touches meanwhile keeps little of this one's warm. Sums over the same bursts tell how they grow with older
// ages: of what other processes of the same program touched last, and of the process's eighth last burst. The meter's own
// sleeps end no burst that is counted: long bursts, which are the cold ones, have more of them; nor do stops. Left out are those
// that end while the host's cores are slow, and, where clocks of cores meter the node, those of threads that these do not know.

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define NODES_MAX 65536
#define NS_PER_S 1000000000ull
// Frames with several segments that a lab's nodes have sent and the emulator has not read yet: far fewer than this.
#define LARGE_MAX 16384
#define MAGIC 0xd1ecde87u
// In the thread id of a trailer; host/net/src/egress.rs has the same.
#define IN_SETSOCKOPT 0x80000000u
// From this bit on, in eight, for how long its cores stood still since its last hit (`paused_units`): a thread id has 22.
#define PAUSED_SHIFT 22
#define WAIT_KINDS 32
// Units of core/cpu/src/learn.rs. More data than so many units says nothing more: the burst is beyond COUNTED_MAX_NS.
#define DATA_ONE 64
#define DATA_MAX 65536
#define MSG_PEEK 2
#define NR_SETSOCKOPT 54
#define COLD_MAX_NS 1000000ull
// Of a longer burst only the pieces of work that begin in its first COLD_MAX_NS are counted, whole but for what is beyond this:
// what else it does hides what its begin costs.
#define COUNTED_MAX_NS (2 * COLD_MAX_NS)
// core/cpu/src/hits.rs has the same.
#define HIT_SUMS 8
// Of a piece of work in which a hit came as it began: it was overdue and tells nothing.
#define OVERDUE_HIT 0x10000u
#define OVERDUE_WITHIN_NS 30000
// Each receive counts like so many bytes more: it has work of its own.
#define RECEIVE_BYTES 1024
#define SIGTRAP 5
// What takes longer to get an idle core, or to tell a busy one of a wake-up, is the host's doing; and from getting a core to the
// first receive, the program's.
#define WAKE_MAX_NS 100000

#include "kernel.h"

extern void *bpf_cast_to_kern_ctx(void *) __ksym;

#include "ages.h"
#include "waits.h"
#include "../bpf-tick/meter.h"

struct cell {
	__u64 count;
	__u64 cpu_ns;
	// Sum of their squares, µs².
	__u64 square_us2;
	// Data received in them, in units of DATA_ONE bytes; its squares; its products with CPU time, µs.
	__u64 data;
	__u64 data_square;
	__u64 data_us;
};

// host/egress/src/lib.rs has the same, in this order.
enum { OWN_OF_THREADS, OWN_OF_PACKETS, OWN_PACKETS, OWN_OF_FRAMES, OWN_SUMS };
enum { WAKES, WAKES_NS, ENDS, ENDS_NS, TURNS, TURNS_NS, WAYS, WAYS_NS, WAKE_SUMS };

// What is known of a node.
struct node {
	struct cell bursts[WAIT_KINDS][GAP_BINS];
	// Those before which another process of the program had run last come second.
	struct ages ages[2][WAIT_KINDS][AGED_BINS];
	// Sums over pieces of work by how many hits they had (core/cpu/src/hits.rs).
	__u64 hits[WAIT_KINDS][HIT_SUMS];
	// Switches to its threads: from another of the same process, with which the meter's timer goes on; from another that
	// is metered, whose timer is ended; from anything else.
	__u64 switches[3];
	// What these programs took of its CPU time, ns: at switches to its threads, wake-ups by them and their receives; at
	// its packets, with what waking the emulator took, and how many; and of who delivers frames to it.
	__u64 own[OWN_SUMS];
	// CPU time without these programs' own and without hits, ns: of bursts that began with a receive up to it; from the last
	// packet before a sleep to that; and from a packet to a receive where no sleep lies between. Then the time from wake-ups of
	// threads until they got a core, where nobody had it. Each after its count.
	__u64 wakes[WAKE_SUMS];
	struct waited waited;
};

// Nodes by the cookie of their network namespace.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, NODES_MAX);
	__type(key, __u64);
	__type(value, struct node);
} nodes SEC(".maps");

// Not 0 while the host's cores are slow: bursts that end now are not counted.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} slow SEC(".maps");

// What a hit of the meter adds to a burst, what lies between two, and what a sleep before a wait adds, real CPU ns, by node; and
// real ns that its original takes for a CPU ns of ours, in parts of 1 << LEAD_SHIFT; and how it is metered.
#define LEAD_SHIFT 10
struct hit_cost {
	__u64 added_ns;
	__u64 period_ns;
	__u64 pays_ns;
	__u64 lead;
	// Whether clocks of cores meter it: what they do not know makes its containers.
	__u64 by_cores;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, NODES_MAX);
	__type(key, __u64);
	__type(value, struct hit_cost);
} hit_costs SEC(".maps");

// Ticks per second. While a thread runs, every tick brings its CPU time up to date.
const volatile __u64 hz = 100;

// What is known of a thread and its present burst.
struct burst {
	// CLOCK_MONOTONIC minus the clock of `exec_start`, ns, when the thread last got a core.
	__s64 offset_ns;
	// CPU time at its start, ns.
	__u64 cpu_ns;
	// CLOCK_MONOTONIC when it became possible, ns: at the wake-up before it. 0 while the thread is blocked, and after that until
	// the wake-up is seen.
	__u64 woke_ns;
	// CLOCK_MONOTONIC when somebody set out to wake it, ns; 0 when that was not seen.
	__u64 waking_ns;
	// How long its process had not run at that wake-up, ns.
	__u64 gap_ns;
	// CLOCK_MONOTONIC when a wake-up of the loader's threads began while it had the core, ns; 0 when it is over.
	__u64 wakes_own_ns;
	// The thread has not blocked since.
	__u32 going;
	// The same of the burst that is counted: it goes on through sleeps of the meter, and stops.
	__u32 counting;
	__u64 counted_from_ns;
	__u64 counted_gap_ns;
	// Bytes received from sockets in it.
	__u64 data;
	// What of it is counted, where that is less than all: CPU time up to a receive without sleeps before waits, ns, and hits in
	// that; else 0.
	__u64 whole_pieces_ns;
	__u64 whole_pieces_hits;
	// CPU time that sleeps before waits took in it.
	__u64 paid_ns;
	struct of_age counted_age;
	// What it had waited for.
	__u32 kind;
	// Hits of the meter in it.
	__u32 hits;
	// Its present piece of work, up to the next receive or where it pays: CPU time at its start, hits, and whether it counts: it
	// began with a receive, and any tick in it is a hit.
	__u64 piece_from_ns;
	__u32 piece_hits;
	__u32 piece_counts;
	// At its last packet, if it has not received since: CPU time, ns, hits, and the programs' own time.
	__u64 sent_cpu_ns;
	__u64 sent_own_ns;
	__u32 sent_hits;
	// Its thread id in its own pid namespace; 0 while nobody has asked.
	__u32 tid;
	// The CPU time that was told last, ns.
	__u64 told_ns;
	// How far it is by its work, as CLOCK_MONOTONIC, ns, and its CPU time then (`position`).
	__u64 at_ns;
	__u64 at_cpu_ns;
	// It sleeps for the meter.
	__u32 meters;
	__u32 pad;
	// Of the network namespace in which it last got a core.
	__u64 cookie;
	// What these programs took of its CPU time since its node was told, as in `own`.
	__u64 own[OWN_OF_FRAMES];
	struct wait wait;
};
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct burst);
} bursts SEC(".maps");

// Frames that left without a trailer, which is none: they are dropped. The loader reads it.
__u64 dropped = 0;

static __always_inline struct node *node_of(struct task_struct *task, __u64 *cookie)
{
	struct nsproxy *namespaces = task->nsproxy;

	*cookie = 0;
	if (!namespaces)
		return NULL;
	*cookie = BPF_CORE_READ(namespaces, net_ns, net_cookie);
	return bpf_map_lookup_elem(&nodes, cookie);
}

static __always_inline struct process *set_busy(struct task_struct *task, __u64 now)
{
	struct process *p = bpf_task_storage_get(&processes, task->group_leader, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (p)
		p->busy_ns = now;
	return p;
}

// A thread's next burst is possible from now on.
static __always_inline void sleep_ends(struct burst *b, struct task_struct *task, __u64 now)
{
	struct process *p = bpf_task_storage_get(&processes, task->group_leader, 0, 0);

	b->woke_ns = now;
	b->gap_ns = p && p->busy_ns && p->busy_ns < now ? now - p->busy_ns : 0;
}

// Who wakes a thread pays for this program: another of the node, or the emulator, whose time is charged to the node.
static __always_inline void tell_waker(struct task_struct *task, struct node *node, __u64 began)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	struct burst *b;

	if (is_own(waker)) {
		if (waker->policy != SCHED_IDLE)
			__sync_fetch_and_add(&node->own[OWN_OF_FRAMES], bpf_ktime_get_ns() - began);
	} else if (waker->nsproxy == task->nsproxy) {
		b = bpf_task_storage_get(&bursts, waker, 0, 0);
		if (b)
			b->own[OWN_OF_THREADS] += bpf_ktime_get_ns() - began;
	}
}

// The emulator is woken by a node's packet, or by a timer that interrupts a node's thread: on a busy core, which has to be told,
// that takes long, and no original machine does it.
static __always_inline int own_woken(void)
{
	struct burst *b = bpf_task_storage_get(&bursts, bpf_get_current_task_btf(), 0, 0);
	__u64 took_ns;

	if (!b || !b->wakes_own_ns)
		return 0;
	// One that an idle core did itself has not ended here.
	took_ns = gain(b->wakes_own_ns, bpf_ktime_get_ns());
	if (took_ns <= WAKE_MAX_NS)
		b->own[OWN_OF_PACKETS] += took_ns;
	b->wakes_own_ns = 0;
	return 0;
}

static __always_inline int woken(struct task_struct *task)
{
	struct node *node;
	struct burst *b;
	__u64 cookie, now = bpf_ktime_get_ns();

	node = node_of(task, &cookie);
	if (!node)
		return is_own(task) ? own_woken() : 0;
	b = bpf_task_storage_get(&bursts, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!b)
		return 0;
	// Of one that is on its way to block: its switch knows better.
	wait_begins(&b->wait, task, &node->waited, cookie, task->thread_info.cpu, now);
	if (!b->going)
		sleep_ends(b, task, now);
	tell_waker(task, node, now);
	return 0;
}

// What a thread waits for, told from others by the system call and by where its stack is: a place in the program. Stacks
// of a process's threads lie whole pages apart, so that the same place in two of them is the same.
// WAIT_KINDS for the meter's own sleeps.
static __always_inline __u32 kind_of_wait(struct task_struct *task)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u32 nr = BPF_CORE_READ(regs, orig_ax), depth = (__u32)BPF_CORE_READ(regs, sp) & 0xfff;

	if (is_meters_sleep(nr, regs))
		return WAIT_KINDS;
	return (nr * 0x9e3779b1u + depth * 0x85ebca6bu) >> 27;
}

static __always_inline bool cores_are_slow(void)
{
	__u32 first = 0, *is_slow = bpf_map_lookup_elem(&slow, &first);

	return is_slow && *is_slow;
}

static __always_inline void piece_begins(struct burst *b, __u64 cpu_ns, bool counts)
{
	b->piece_from_ns = cpu_ns;
	b->piece_hits = 0;
	b->piece_counts = counts;
}

// A piece of work is over. One that did not begin with a receive may have had more to do since its thread slept; one that is
// longer than what lies between two hits surely has one.
static __always_inline void count_piece(struct node *node, struct hit_cost *cost, struct burst *b, __u64 cpu_ns)
{
	__u64 ns = cpu_ns - b->piece_from_ns, us = ns / 1000, hits = b->piece_hits, hit = hits != 0, *sums;
	__u32 kind = b->kind;

	if (!b->piece_counts || hits >= OVERDUE_HIT || !cost || ns > cost->period_ns || kind >= WAIT_KINDS)
		return;
	sums = node->hits[kind];
	__sync_fetch_and_add(&sums[0], 1);
	__sync_fetch_and_add(&sums[1], us);
	__sync_fetch_and_add(&sums[2], hit);
	__sync_fetch_and_add(&sums[3], hits);
	__sync_fetch_and_add(&sums[4], us * us);
	__sync_fetch_and_add(&sums[5], hits * hits);
	__sync_fetch_and_add(&sums[6], hits * us);
	__sync_fetch_and_add(&sums[7], hit * us);
}

static __always_inline __u64 own_time(struct burst *b)
{
	return b->own[OWN_OF_THREADS] + b->own[OWN_OF_PACKETS];
}

// One more, of so long.
static __always_inline void tally(__u64 *sums, __u64 ns)
{
	__sync_fetch_and_add(&sums[0], 1);
	__sync_fetch_and_add(&sums[1], ns);
}

// What its last packet began ends at this CPU time.
static __always_inline void packet_ends(__u64 *sums, struct burst *b, __u64 cpu_ns)
{
	__u64 own_ns = own_time(b);

	// The node was told meanwhile.
	if (own_ns >= b->sent_own_ns)
		own_ns -= b->sent_own_ns;
	if (b->sent_cpu_ns && b->hits == b->sent_hits)
		tally(sums, gain(own_ns, cpu_ns - b->sent_cpu_ns));
}

// A thread sleeps for the meter. Before a wait of the program's its piece of work is over, and what it takes from here on to its
// next is not its own.
static __always_inline void sleeps_for_meter(struct node *node, struct hit_cost *cost, struct task_struct *task, struct burst *b)
{
	__u64 cpu_ns = task->se.sum_exec_runtime;

	if (!pays_before_wait((struct pt_regs *)bpf_task_pt_regs(task)))
		return;
	if (cost)
		b->paid_ns += cost->pays_ns;
	if (!cores_are_slow())
		count_piece(node, cost, b, cpu_ns);
	piece_begins(b, cpu_ns, false);
	b->sent_cpu_ns = 0;
}

// CPU time of the present thread.
static __always_inline __u64 cpu_time(struct task_struct *task, struct burst *b, __u64 now)
{
	__u64 since = now - b->offset_ns - task->se.exec_start;

	// The clocks' distance is known to within the time of one context switch, and grows by what the host steals.
	if ((__s64)since <= 0)
		return task->se.sum_exec_runtime;
	return task->se.sum_exec_runtime + (since < NS_PER_S / hz ? since : NS_PER_S / hz);
}

#include "hands.h"
#include "stalls.h"

// Whether a thread is a program's, whose work teaches something of its node's; `meter` is its own, if it has one.
static __always_inline bool is_programs(struct hit_cost *cost, struct meter *meter)
{
	return !cost || !cost->by_cores || meter;
}

// A thread blocks: a burst is over, unless it is stopped, as a tracer does.
static __always_inline void count(struct node *node, __u64 cookie, struct task_struct *task, struct burst *b,
				  bool stopped, __u64 now)
{
	struct hit_cost *cost = bpf_map_lookup_elem(&hit_costs, &cookie);
	__u64 cpu_ns = b->whole_pieces_ns, hits = b->whole_pieces_hits, data = b->data / DATA_ONE, cpu_us;
	__u32 kind = b->kind, bin = gap_bin(b->counted_gap_ns), next = kind_of_wait(task);
	struct meter *meter;

	if (cost) {
		b->at_ns = position(b, task->se.sum_exec_runtime, cost->lead);
		b->at_cpu_ns = task->se.sum_exec_runtime;
	}
	b->meters = next >= WAIT_KINDS;
	if (b->meters && !stopped) {
		sleeps_for_meter(node, cost, task, b);
		return;
	}
	if (cost && !b->meters)
		tells_what_is_left(task, cookie, b, false, now);
	meter = bpf_task_storage_get(&metered, task, 0, 0);
	if (stopped) {
		// Its exec, which makes it known.
		if (cores_are_slow() || !is_programs(cost, meter))
			b->kind = WAIT_KINDS;
		return;
	}
	if (!cpu_ns) {
		cpu_ns = gain(b->paid_ns, task->se.sum_exec_runtime - b->counted_from_ns);
		hits = b->hits;
	}
	b->counting = 0;
	if (cores_are_slow() || !is_programs(cost, meter)) {
		b->kind = next;
		return;
	}
	count_piece(node, cost, b, task->se.sum_exec_runtime);
	packet_ends(&node->wakes[ENDS], b, task->se.sum_exec_runtime);
	b->kind = next;
	if (kind >= WAIT_KINDS || bin >= GAP_BINS)
		return;
	// What is left is the program's own; of which at least a half, whatever a hit takes.
	if (cost)
		cpu_ns -= least(cost->added_ns * hits, cpu_ns / 2);
	if (cpu_ns > COUNTED_MAX_NS)
		cpu_ns = COUNTED_MAX_NS;
	if (data > DATA_MAX)
		data = DATA_MAX;
	cpu_us = cpu_ns / 1000;
	__sync_fetch_and_add(&node->bursts[kind][bin].count, 1);
	__sync_fetch_and_add(&node->bursts[kind][bin].cpu_ns, cpu_ns);
	__sync_fetch_and_add(&node->bursts[kind][bin].square_us2, cpu_us * cpu_us);
	__sync_fetch_and_add(&node->bursts[kind][bin].data, data);
	__sync_fetch_and_add(&node->bursts[kind][bin].data_square, data * data);
	__sync_fetch_and_add(&node->bursts[kind][bin].data_us, data * cpu_us);
	if (bin >= AGED_FROM && b->counted_age.past)
		count_ages(&node->ages[b->counted_age.program != 0][kind][bin - AGED_FROM], &b->counted_age,
			   least(cpu_us, COLD_MAX_NS / 1000));
}

// A thread has received so much from a socket. Linux 6.3 or later.
SEC("tp_btf/sock_recv_length")
int BPF_PROG(received, const void *socket, int bytes, int flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct hit_cost *cost;
	struct meter *meter;
	struct node *node;
	struct burst *b;
	__u64 cpu_ns, since_ns, begins_ns, cookie, now;

	if (bytes <= 0 || flags & MSG_PEEK)
		return 0;
	now = bpf_ktime_get_ns();
	b = bpf_task_storage_get(&bursts, task, 0, 0);
	if (!b || !b->counting)
		return 0;
	node = node_of(task, &cookie);
	if (!node)
		return 0;
	cpu_ns = cpu_time(task, b, now);
	cost = bpf_map_lookup_elem(&hit_costs, &cookie);
	meter = bpf_task_storage_get(&metered, task, 0, 0);
	if (!is_programs(cost, meter))
		return 0;
	if (!cores_are_slow()) {
		count_piece(node, cost, b, cpu_ns);
		packet_ends(&node->wakes[TURNS], b, cpu_ns);
	}
	b->sent_cpu_ns = 0;
	piece_begins(b, cpu_ns, !meter || !packets_tell(meter) || !cost || is_due(meter, cpu_ns, cost->period_ns));
	since_ns = gain(b->paid_ns, cpu_ns - b->counted_from_ns);
	begins_ns = gain(own_time(b), since_ns);
	// What takes longer has had something else to do first.
	if (!b->data && !b->hits && !b->whole_pieces_ns && begins_ns <= WAKE_MAX_NS)
		tally(&node->wakes[WAKES], begins_ns);
	if (since_ns < COLD_MAX_NS) {
		b->data += bytes + RECEIVE_BYTES;
	} else if (!b->whole_pieces_ns) {
		b->whole_pieces_ns = since_ns;
		b->whole_pieces_hits = b->hits;
	}
	b->own[OWN_OF_THREADS] += bpf_ktime_get_ns() - now;
	return 0;
}

// A hit of the meter's begins; who else sends a thread SIGTRAP does it seldom.
SEC("tp_btf/signal_deliver")
int BPF_PROG(hit, int signal)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct burst *b;

	if (signal != SIGTRAP)
		return 0;
	b = bpf_task_storage_get(&bursts, task, 0, 0);
	if (!b || !b->counting)
		return 0;
	b->hits++;
	if (!b->piece_hits && cpu_time(task, b, bpf_ktime_get_ns()) - b->piece_from_ns < OVERDUE_WITHIN_NS)
		b->piece_hits = OVERDUE_HIT;
	else
		b->piece_hits++;
	return 0;
}

// Before the wake-up itself, which an idle core does once it knows of it.
SEC("tp_btf/sched_waking")
int BPF_PROG(waking, struct task_struct *task)
{
	struct burst *b = bpf_task_storage_get(&bursts, task, 0, 0);

	if (b) {
		if (!b->going) {
			b->waking_ns = bpf_ktime_get_ns();
			hands_on(task, b, b->waking_ns);
		}
	} else if (is_own(task)) {
		b = bpf_task_storage_get(&bursts, bpf_get_current_task_btf(), 0, 0);
		if (b)
			b->wakes_own_ns = bpf_ktime_get_ns();
	}
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(wakeup, struct task_struct *task)
{
	return woken(task);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(wakeup_new, struct task_struct *task)
{
	struct burst *b;

	woken(task);
	b = bpf_task_storage_get(&bursts, task, 0, 0);
	if (b)
		hands_on(task, b, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(burst, bool preempted, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	__u64 now = bpf_ktime_get_ns(), cookie, next_cookie, way_ns;
	struct node *node = node_of(prev, &cookie), *next_node = node_of(next, &next_cookie);
	__u32 at = bpf_get_smp_processor_id();
	bool goes_on = preempted || prev_state == 0, got_idle;
	struct waited *waited = NULL;
	struct process *process;
	struct program *program;
	__u64 *own = NULL;
	struct burst *b;

	if (node) {
		waited = &node->waited;
		own = node->own;
		// Else the sums are taken before the check, which the verifier refuses.
		asm volatile("" : "+r"(waited), "+r"(own));
	}
	passes_on(at, waited, next, next_cookie, next_node, now);
	if (node) {
		set_busy(prev, now);
		program = program_of(prev);
		if (program) {
			program->ran_ns = now;
			program->tgid = (__u32)prev->tgid;
		}
		b = bpf_task_storage_get(&bursts, prev, 0, 0);
		if (b && b->going && !goes_on) {
			b->going = 0;
			count(node, cookie, prev, b, is_stopped(prev, prev_state), now);
			b->woke_ns = 0;
		}
		if (b) {
#pragma unroll
			for (int i = 0; i < OWN_OF_FRAMES; i++) {
				add(&own[i], b->own[i]);
				b->own[i] = 0;
			}
		}
		if (b && goes_on)
			wait_begins(&b->wait, prev, &node->waited, cookie, at, now);
		else if (b)
			b->wait.since_ns = 0;
	} else if (prev_state & TASK_DEAD) {
		ends(prev, now);
	}
	if (!next_node)
		return 0;
	__sync_fetch_and_add(&next_node->switches[prev->tgid == next->tgid ? 0 : node ? 1 : 2], 1);
	b = bpf_task_storage_get(&bursts, next, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	// In an interrupt of a thread that no event meets: on some kernels those of idle cores, and others.
	if (b && !b->going && !b->woke_ns)
		sleep_ends(b, next, now);
	process = set_busy(next, now);
	if (!b)
		return 0;
	got_idle = wait_ends(&b->wait, next, &next_node->waited, next_cookie, now);
	b->cookie = next_cookie;
	b->offset_ns = now - next->se.exec_start;
	if (!b->going) {
		b->going = 1;
		keep_number(next, b);
		b->cpu_ns = next->se.sum_exec_runtime;
		// The meter's sleeps end where the ledger has it.
		if (b->meters || b->at_ns < b->woke_ns)
			b->at_ns = b->woke_ns;
		b->meters = 0;
		b->at_cpu_ns = b->cpu_ns;
		way_ns = got_idle && b->waking_ns ? gain(b->waking_ns, now) : 0;
		if (way_ns && way_ns <= WAKE_MAX_NS)
			tally(&next_node->wakes[WAYS], way_ns);
		b->waking_ns = 0;
	}
	if (!b->counting) {
		b->counting = 1;
		b->counted_from_ns = next->se.sum_exec_runtime;
		b->counted_gap_ns = b->gap_ns;
		b->data = 0;
		b->whole_pieces_ns = 0;
		b->hits = 0;
		b->paid_ns = 0;
		b->sent_cpu_ns = 0;
		piece_begins(b, b->counted_from_ns, false);
		grow_old(&b->counted_age, next, process, now - b->gap_ns, now);
	}
	// The kernel's account is the next thread's by now.
	b->own[OWN_OF_THREADS] += bpf_ktime_get_ns() - now;
	return 0;
}

// When the frame that an emulator's thread delivers on a core reached the stack, CLOCK_MONOTONIC ns; 0 until then. Who delivers
// reads it, and sets it back. What came before is the TAP's, which no original machine has.
struct stack {
	__u64 began_ns;
	// Cores don't share cache lines.
	__u64 pad[7];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CORES_MAX);
	__type(key, __u32);
	__type(value, struct stack);
} stacks SEC(".maps");

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(reached, struct sk_buff *packet)
{
	__u32 at = bpf_get_smp_processor_id();
	struct stack *stack;

	if (!is_own(bpf_get_current_task_btf()))
		return 0;
	stack = bpf_map_lookup_elem(&stacks, &at);
	// The first time counts: a bridge in the node passes it on to the stack again.
	if (stack && !stack->began_ns)
		stack->began_ns = bpf_ktime_get_ns();
	return 0;
}

// A thread that waits goes to another core's queue.
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(migrate, struct task_struct *task, int to)
{
	struct burst *b = bpf_task_storage_get(&bursts, task, 0, 0);
	struct node *node;
	__u64 now, cookie;

	if (!b || !b->wait.since_ns)
		return 0;
	node = node_of(task, &cookie);
	if (!node)
		return 0;
	now = bpf_ktime_get_ns();
	wait_ends(&b->wait, task, &node->waited, cookie, now);
	wait_begins(&b->wait, task, &node->waited, cookie, to, now);
	return 0;
}

// What a frame with several segments is known by; host/net/src/egress.rs has the same.
struct large_key {
	// Destination and source.
	__u8 macs[12];
	// Ports, then the sequence number of TCP, or length and checksum of UDP.
	__u8 transport[8];
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LARGE_MAX);
	__type(key, struct large_key);
	__type(value, struct trailer);
} large SEC(".maps");

// The sender's burst, if one of the node's threads sends.
static __always_inline struct burst *fill(struct trailer *t, struct sk_buff *packet)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct nsproxy *namespaces = task->nsproxy;
	struct burst *b;
	struct meter *meter;
	__u64 now = bpf_ktime_get_ns();

	t->now_ns = now;
	// Received frames are answered in the emulator's context; timers interrupt anybody.
	if (!namespaces || BPF_CORE_READ(namespaces, net_ns) != BPF_CORE_READ(packet, dev, nd_net.net))
		return NULL;
	b = bpf_task_storage_get(&bursts, task, 0, 0);
	if (!b || !b->going)
		return NULL;
	tell(t, task, b, cpu_time(task, b, now));
	meter = bpf_task_storage_get(&metered, task, 0, 0);
	if (meter) {
		told(t, task, meter);
		// The packet is charged what it used, so no hit is overdue.
		meter->hit_ns = NEVER;
		meter->told_cpu_ns = t->cpu_ns;
	}
	if (BPF_CORE_READ((struct pt_regs *)bpf_task_pt_regs(task), orig_ax) == NR_SETSOCKOPT)
		t->tid |= IN_SETSOCKOPT;
	b->sent_cpu_ns = t->cpu_ns;
	b->sent_own_ns = own_time(b);
	b->sent_hits = b->hits;
	return b;
}

// For a frame that is cut later.
static __always_inline int remember(struct __sk_buff *skb, const struct trailer *t)
{
	struct sk_buff *packet = bpf_cast_to_kern_ctx(skb);
	struct large_key key = {};

	if (!bpf_skb_load_bytes(skb, 0, key.macs, sizeof key.macs) &&
	    !bpf_probe_read_kernel(key.transport, sizeof key.transport, packet->head + packet->transport_header))
		bpf_map_update_elem(&large, &key, t, BPF_ANY);
	return TC_ACT_OK;
}

static __always_inline int leave(struct __sk_buff *skb, struct trailer *t)
{
	const __u16 *word = (const __u16 *)t;
	__u32 length = skb->len, sum = 0;

	if (skb->gso_size)
		return remember(skb, t);
#pragma unroll
	for (int i = 0; i < (int)(sizeof *t / 2 - 1); i++)
		sum += word[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	t->balance = 0xffff - sum;
	if (bpf_skb_change_tail(skb, length + sizeof *t, 0) || bpf_skb_store_bytes(skb, length, t, sizeof *t, 0)) {
		__sync_fetch_and_add(&dropped, 1);
		return TC_ACT_SHOT;
	}
	return TC_ACT_OK;
}

SEC("tc")
int debt(struct __sk_buff *skb)
{
	struct trailer t = {.magic = MAGIC};
	struct burst *b = fill(&t, bpf_cast_to_kern_ctx(skb));
	int action = leave(skb, &t);

	if (b) {
		b->own[OWN_OF_PACKETS] += bpf_ktime_get_ns() - t.now_ns;
		b->own[OWN_PACKETS]++;
	}
	return action;
}

char _license[] SEC("license") = "GPL";
