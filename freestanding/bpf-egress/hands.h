// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// What a thread has used, told to the emulator: with a packet, and as it hands work on within its node. Part of debt.bpf.c.
//
// A thread that wakes another of its node is ahead of its virtual time, and what the other does then could not begin on the
// original machine before the waker had come that far. So it is told through a ring, in order: who woke whom, and what the waker
// had used by then. A thread that blocks or ends tells what it has used since, so that this is charged as it was used and is
// no part of its next burst.

// Of the ring, bytes: some thirteen thousand records.
#define RING_BYTES (1 << 20)
// Of a task's last state.
#define TASK_DEAD 0x80
// What is less is not told when a thread blocks or ends, ns.
#define LEFT_MIN_NS 20000
// A waker that is no further ahead than what so much CPU time stands for hands nothing on, ns.
#define LEAD_MIN_NS 5000
// Who reads the ring is woken for it at most once in so long, ns: each packet has it read, too. Sooner where it was empty, and
// later for what a thread leaves, whose next burst has yet to come, if any does.
#define RING_WAKE_NS 1000000
#define RING_WAKE_EMPTY_NS 200000
#define RING_WAKE_LEFT_NS 100000000

// What the emulator finds behind a frame; host/net/src/egress.rs has the same.
struct trailer {
	__u32 magic;
	// Thread id in its own pid namespace; 0: no thread of the node sent this. IN_SETSOCKOPT: it does so in a call of
	// setsockopt, which asks for an acknowledgement (TCP_QUICKACK). From PAUSED_SHIFT on how long its cores stood still.
	__u32 tid;
	// CLOCK_MONOTONIC now, ns, whoever sends.
	__u64 now_ns;
	// CPU time of the thread now, ns.
	__u64 cpu_ns;
	// CPU time at the start of its burst, ns.
	__u64 burst_cpu_ns;
	// CLOCK_MONOTONIC when the burst became possible, ns.
	__u64 woke_ns;
	// Time that the thread has waited for a core so far, ns, as in schedstat.
	__u64 run_delay_ns;
	// How long the process had not run when the burst became possible, µs.
	__u32 gap_us;
	// How often the thread has given up its core so far, the last bits.
	__u16 switches;
	// Makes the sum of all 16-bit words 0xffff.
	__u16 balance;
};

// A record of the ring; host/egress/src/hands.rs has the same.
struct handed {
	// Of the node's network namespace.
	__u64 cookie;
	// Thread id of who was woken, in its own pid namespace; 0: nobody, the thread blocks.
	__u32 to;
	// Or has ended: that was all it ever used.
	__u32 ended;
	// Of the waker. Its balance means nothing.
	struct trailer by;
};
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_BYTES);
} hands SEC(".maps");

// Records that found no room. The loader reads it.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost_hands SEC(".maps");

// When who reads the ring was last woken for it.
__u64 ring_woken_ns = 0;

// Whether a core is in one of these, as bits: who runs there has nothing to do with whom they wake. What a thread's own packets
// to its node set off on their way through the loopback device is its doing: softirqs of the network are none of them.
enum { IN_HRTIMER = 1, IN_SOFTIRQ = 2, IN_HANDLER = 4 };
enum { NET_TX = 2, NET_RX = 3 };
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} interrupted SEC(".maps");

static __always_inline int interrupts(__u32 kind, bool begins)
{
	__u32 here = 0, *kinds = bpf_map_lookup_elem(&interrupted, &here);

	if (kinds)
		*kinds = begins ? *kinds | kind : *kinds & ~kind;
	return 0;
}

SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(hrtimer_begins)
{
	return interrupts(IN_HRTIMER, true);
}

SEC("tp_btf/hrtimer_expire_exit")
int BPF_PROG(hrtimer_ends)
{
	return interrupts(IN_HRTIMER, false);
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_begins, unsigned int vector)
{
	return vector == NET_TX || vector == NET_RX ? 0 : interrupts(IN_SOFTIRQ, true);
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_ends)
{
	return interrupts(IN_SOFTIRQ, false);
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(handler_begins)
{
	return interrupts(IN_HANDLER, true);
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(handler_ends)
{
	return interrupts(IN_HANDLER, false);
}

static __always_inline bool in_interrupt(void)
{
	__u32 here = 0, *kinds = bpf_map_lookup_elem(&interrupted, &here);

	return !kinds || *kinds;
}

// The thread's id in its own pid namespace: the last of an array that is as long as the namespace is deep.
static __always_inline __u32 innermost(struct pid *pid)
{
	const void *numbers = (const void *)pid + bpf_core_field_offset(struct pid, numbers);
	const void *last = numbers + BPF_CORE_READ(pid, level) * bpf_core_type_size(struct upid);
	__u32 nr = 0;

	bpf_probe_read_kernel(&nr, sizeof nr, last + bpf_core_field_offset(struct upid, nr));
	return nr;
}

// One that has ended may have lost its number by now, and has the one of its first switch.
static __always_inline __u32 number(struct task_struct *task, struct burst *b)
{
	struct pid *pid = task->thread_pid;

	if (pid)
		b->tid = innermost(pid);
	return b->tid;
}

// Of one that gets a core and tells nothing before it ends.
static __always_inline void keep_number(struct task_struct *task, struct burst *b)
{
	if (!b->tid)
		number(task, b);
}

// What a thread has used.
static __always_inline void tell(struct trailer *t, struct task_struct *task, struct burst *b, __u64 cpu_ns)
{
	t->tid = number(task, b);
	t->cpu_ns = cpu_ns;
	t->burst_cpu_ns = b->cpu_ns;
	t->woke_ns = b->woke_ns;
	t->switches = task->nvcsw + task->nivcsw;
	t->run_delay_ns = task->sched_info.run_delay;
	t->gap_us = b->gap_ns / 1000 < 0xffffffffull ? b->gap_ns / 1000 : 0xffffffffull;
	b->told_ns = cpu_ns;
}

// What is told is charged: no hit need tell it.
static __always_inline void told(struct trailer *t, struct task_struct *task, struct meter *meter)
{
	t->tid |= paused_units(meter) << PAUSED_SHIFT;
	meter->delay_ns = task->sched_info.run_delay;
}

static __always_inline struct handed *record(__u64 cookie, __u64 now, struct task_struct *task, struct burst *b,
					     struct meter *meter, __u64 cpu_ns)
{
	struct handed *h = bpf_ringbuf_reserve(&hands, sizeof *h, 0);
	__u32 first = 0;
	__u64 *lost;

	if (!h) {
		lost = bpf_map_lookup_elem(&lost_hands, &first);
		if (lost)
			__sync_fetch_and_add(lost, 1);
		return NULL;
	}
	__builtin_memset(h, 0, sizeof *h);
	h->cookie = cookie;
	h->by.magic = MAGIC;
	h->by.now_ns = now;
	tell(&h->by, task, b, cpu_ns);
	told(&h->by, task, meter);
	return h;
}

static __always_inline void submit(struct handed *h, __u64 now)
{
	__u64 since_ns = gain(ring_woken_ns, now), unread = bpf_ringbuf_query(&hands, BPF_RB_AVAIL_DATA);
	__u64 waits_ns = !h->to ? RING_WAKE_LEFT_NS : unread <= sizeof *h + BPF_RINGBUF_HDR_SZ ? RING_WAKE_EMPTY_NS : RING_WAKE_NS;
	bool wakes = since_ns > waits_ns || (unread > RING_BYTES / 4 && since_ns > RING_WAKE_NS);

	if (wakes)
		ring_woken_ns = now;
	bpf_ringbuf_submit(h, wakes ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

// How far a thread is by its work of the present burst, as an instant of CLOCK_MONOTONIC: about, for who only wants to know
// whether it is ahead.
static __always_inline __u64 position(struct burst *b, __u64 cpu_ns, __u64 lead)
{
	return b->at_ns + (gain(b->at_cpu_ns, cpu_ns) * lead >> LEAD_SHIFT);
}

// A thread of a node is woken. Where one of the same node does so, it hands on how far it is.
static __always_inline void hands_on(struct task_struct *task, struct burst *to, __u64 now)
{
	struct task_struct *by = bpf_get_current_task_btf();
	struct nsproxy *own = by->nsproxy, *others = task->nsproxy;
	struct hit_cost *cost;
	struct burst *b;
	struct meter *meter;
	struct handed *h;
	__u64 cookie, cpu_ns, at_ns;

	// The meter's sleeps have nothing to wait for. One that ends has no namespaces any more as it tells its parent, or as packets of
	// another node are received on its core.
	if (to->meters || !others || (own && own != others && BPF_CORE_READ(own, net_ns) != BPF_CORE_READ(others, net_ns)))
		return;
	b = bpf_task_storage_get(&bursts, by, 0, 0);
	meter = bpf_task_storage_get(&metered, by, 0, 0);
	// What comes before a program, to make its container, is not metered.
	if (!b || !b->going || !meter || !bpf_task_storage_get(&metered, task, 0, 0) || in_interrupt())
		return;
	cookie = BPF_CORE_READ(others, net_ns, net_cookie);
	cost = bpf_map_lookup_elem(&hit_costs, &cookie);
	if (!cost || (!own && b->cookie != cookie))
		return;
	cpu_ns = cpu_time(by, b, now);
	at_ns = position(b, cpu_ns, cost->lead);
	if (at_ns < now + (LEAD_MIN_NS * cost->lead >> LEAD_SHIFT))
		return;
	if (to->at_ns < at_ns)
		to->at_ns = at_ns;
	h = record(cookie, now, by, b, meter, cpu_ns);
	if (!h)
		return;
	meter->told_cpu_ns = cpu_ns;
	h->to = number(task, to);
	submit(h, now);
	b->own[OWN_OF_THREADS] += bpf_ktime_get_ns() - now;
}

// A thread blocks, for another reason than the meter, or ends. What it was told to have used may be more than the kernel counted:
// time that the host stole, or that counts as the next thread's. Its next hit gives that back; of one that ends this does.
static __always_inline void tells_what_is_left(struct task_struct *task, __u64 cookie, struct burst *b, bool ended, __u64 now)
{
	__u64 cpu_ns = task->se.sum_exec_runtime, too_much_ns = ended ? gain(cpu_ns, b->told_ns) : 0;
	struct meter *meter = bpf_task_storage_get(&metered, task, 0, 0);
	struct handed *h;

	if (!meter || (gain(b->told_ns, cpu_ns) < LEFT_MIN_NS && too_much_ns < LEFT_MIN_NS))
		return;
	h = record(cookie, now, task, b, meter, cpu_ns);
	if (!h)
		return;
	h->ended = ended;
	// The switch away is not of its burst.
	h->by.switches--;
	submit(h, now);
}

// A thread's last switch. It has no namespaces any more.
static __always_inline void ends(struct task_struct *task, __u64 now)
{
	struct burst *b = bpf_task_storage_get(&bursts, task, 0, 0);

	if (!b || !b->going || !bpf_map_lookup_elem(&hit_costs, &b->cookie))
		return;
	b->going = 0;
	tells_what_is_left(task, b->cookie, b, true, now);
}
