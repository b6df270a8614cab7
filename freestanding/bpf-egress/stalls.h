// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// When a core was kept from a lab in which nobody is metered and nothing holds threads back. Part of debt.bpf.c.
//
// Threads that are neither the lab's nor the loader's had it, which their switches away tell. Some kernels hide what happens while
// an idle thread or one of the first process has the core: then a node's thread has waited for longer than all that were seen to
// have it in the meantime.
//
// Or nothing had it, as when a hypervisor runs something else: then a timer of the core fires late. What comes before the last
// that was seen there is no part of it: a timer may be set to an instant that has passed.

// What is shorter is not told, ns.
#define STALL_MIN_NS 100000
// What a node's thread waited for unseen ones, ns: less may be the lab's own packets, which an idle core works on before it looks at
// whom they woke, some hundred at most.
#define UNSEEN_MIN_NS 500000
// What lasts is told in parts of about so long, ns.
#define STALL_PART_NS 20000000
#define STALLS_BYTES (1 << 20)
#define PF_KTHREAD 0x00200000

struct timerqueue_node {
	__s64 expires;
} __attribute__((preserve_access_index));
struct hrtimer {
	struct timerqueue_node node;
	unsigned char is_soft;
} __attribute__((preserve_access_index));

// host/egress/src/stalls.rs has the same.
struct stall {
	// CLOCK_MONOTONIC, ns.
	__u64 from_ns;
	__u64 to_ns;
	__u32 core;
	__u32 pad;
	// Name of the thread that had the core; empty where none did.
	char by[16];
};
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, STALLS_BYTES);
} stalls SEC(".maps");

// How long those were together that found no room, ns. The loader reads it.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost_stalls SEC(".maps");

// What is known of a core; instants of CLOCK_MONOTONIC, ns.
struct kept {
	// When it was last seen to do anything.
	__u64 seen_ns;
	// Up to when it was told to be somebody else's.
	__u64 told_ns;
	// For how long those had it, in all, that were seen to give it up.
	__u64 had_ns;
	// When it last went from one thread to another, as far as that was seen.
	__u64 passed_ns;
	// When somebody else last got it, as far as that was seen, and who.
	__u64 others_ns;
	char by[16];
	int pid;
	__u32 pad;
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kept);
} kept SEC(".maps");

// A node's thread, or that of softirqs, as it last gave up a core.
struct left {
	__u64 at_ns;
	// How long it had waited for cores so far.
	__u64 delay_ns;
	// The core's `had_ns`.
	__u64 had_ns;
	// Moves from core to core so far.
	__u64 moves;
	__u32 core;
	__u32 pad;
};
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct left);
} lefts SEC(".maps");

static __always_inline struct kept *kept_here(void)
{
	__u32 here = 0;

	return bpf_map_lookup_elem(&kept, &here);
}

static __always_inline void tell_stall(__u64 from_ns, __u64 to_ns, const char *by)
{
	struct stall *s;
	__u32 first = 0;
	__u64 *lost;

	if (gain(from_ns, to_ns) < STALL_MIN_NS)
		return;
	s = bpf_ringbuf_reserve(&stalls, sizeof *s, 0);
	if (!s) {
		lost = bpf_map_lookup_elem(&lost_stalls, &first);
		if (lost)
			__sync_fetch_and_add(lost, to_ns - from_ns);
		return;
	}
	s->from_ns = from_ns;
	s->to_ns = to_ns;
	s->core = bpf_get_smp_processor_id();
	s->pad = 0;
	__builtin_memset(s->by, 0, sizeof s->by);
	if (by)
		bpf_probe_read_kernel_str(s->by, sizeof s->by, by);
	bpf_ringbuf_submit(s, BPF_RB_NO_WAKEUP);
}

// ksoftirqd does what packets of the lab ask for, among other things.
static __always_inline bool is_softirqs(struct task_struct *task)
{
	const char *name = task->comm;

	return (task->flags & PF_KTHREAD) && name[0] == 'k' && name[1] == 's' && name[2] == 'o' && name[3] == 'f' && name[4] == 't';
}

static __always_inline bool is_others(struct task_struct *task)
{
	__u64 cookie;

	if (!task->pid || is_own(task) || is_softirqs(task))
		return false;
	if (task->nsproxy)
		return !node_of(task, &cookie);
	// One that ends has no namespaces any more: then its parent's tell.
	cookie = BPF_CORE_READ(task, real_parent, nsproxy, net_ns, net_cookie);
	return (__u32)BPF_CORE_READ(task, real_parent, tgid) != own && !bpf_map_lookup_elem(&nodes, &cookie);
}

// For how long a thread has had its core, ns; of the idle one nobody keeps that. No longer than since the last switch.
static __always_inline __u64 had_core_ns(struct kept *k, struct task_struct *task, __u64 now)
{
	__u64 had_ns;

	if (!task->pid)
		return 0;
	had_ns = gain(task->sched_info.last_arrival, BPF_CORE_READ(task, se.cfs_rq, rq, clock));
	return k->passed_ns ? least(had_ns, gain(k->passed_ns, now)) : had_ns;
}

// What such a thread waited for its core beyond what others were seen to have it.
static __always_inline void waited_for_unseen(struct kept *k, struct left *left, struct task_struct *task, __u64 got_ns)
{
	__u64 waited_ns = gain(left->delay_ns, task->sched_info.run_delay), seen_ns = gain(left->had_ns, k->had_ns);
	__u64 unseen_ns = gain(seen_ns, waited_ns);

	if (unseen_ns >= UNSEEN_MIN_NS && left->at_ns && left->moves == task->se.nr_migrations &&
	    left->core == bpf_get_smp_processor_id())
		tell_stall(got_ns - unseen_ns, got_ns, k->others_ns >= left->at_ns ? k->by : NULL);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(passed_on, bool preempted, struct task_struct *previous, struct task_struct *next)
{
	struct kept *k = kept_here();
	__u64 now = bpf_ktime_get_ns(), had_ns, from, cookie;
	struct left *left = NULL;

	if (!k)
		return 0;
	had_ns = had_core_ns(k, previous, now);
	if (node_of(previous, &cookie) || is_softirqs(previous)) {
		left = bpf_task_storage_get(&lefts, previous, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (left)
			waited_for_unseen(k, left, previous, now - had_ns);
	} else if (is_others(previous)) {
		from = now - had_ns;
		tell_stall(from > k->told_ns ? from : k->told_ns, now, previous->comm);
	}
	k->had_ns += had_ns;
	if (left) {
		left->at_ns = now;
		left->delay_ns = previous->sched_info.run_delay;
		left->had_ns = k->had_ns;
		left->moves = previous->se.nr_migrations;
		left->core = bpf_get_smp_processor_id();
	}
	if (is_others(next)) {
		k->others_ns = now;
		k->pid = next->pid;
		bpf_probe_read_kernel_str(k->by, sizeof k->by, next->comm);
	}
	k->seen_ns = now;
	k->passed_ns = now;
	return 0;
}

SEC("tp_btf/hrtimer_start")
int BPF_PROG(timer_starts)
{
	struct kept *k = kept_here();

	if (k)
		k->seen_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(timer_ends, struct hrtimer *timer, __s64 *now_of_clock)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct kept *k = kept_here();
	__u64 now = bpf_ktime_get_ns(), late_ns, had_ns, from;
	__s64 fired = 0;

	if (!k)
		return 0;
	from = k->seen_ns;
	k->seen_ns = now;
	had_ns = had_core_ns(k, task, now);
	if (had_ns >= STALL_PART_NS && is_others(task)) {
		// The run queue's clock is that of the last tick.
		from = k->pid == task->pid && k->others_ns ? k->others_ns : now - had_ns;
		from = from > k->told_ns ? from : k->told_ns;
		if (gain(from, now) >= STALL_PART_NS) {
			tell_stall(from, now, task->comm);
			k->told_ns = now;
		}
		return 0;
	}
	// Those of softirqs wait for these.
	if (!from || !bpf_core_field_exists(struct hrtimer, node) || !bpf_core_field_exists(struct hrtimer, is_soft) || timer->is_soft)
		return 0;
	bpf_probe_read_kernel(&fired, sizeof fired, now_of_clock);
	late_ns = fired > timer->node.expires ? fired - timer->node.expires : 0;
	if (late_ns < now && from < now - late_ns)
		from = now - late_ns;
	tell_stall(from, now, NULL);
	return 0;
}
