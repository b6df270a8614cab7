// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Whom a node's threads waited for when they wanted a core. Part of debt.bpf.c, whose programs at wake-ups and context
// switches call this.
//
// A core keeps for how long it has run whom, by class, and a node for how long it has run on each core. A wait notes
// these sums when it begins and when it ends: the differences are what it waited for, at the same cost however long it
// was and however many ran meanwhile. What the node itself ran of the class of nodes are the thread's siblings.
//
// A thread that the ceiling holds waits too, whoever runs: the kernel's sum of that time (`throttled_clock_self_time`,
// from 6.6 on) goes first, out of what nobody ran and then out of the others evenly. Before 6.6 it is the time for which
// the core ran nothing.

#define CORES_MAX 256
#define SCHED_IDLE 5

// What a core runs.
enum { NOBODY, NODES, DIECAST, OTHERS, CLASSES };
// host/egress/src/waits.rs has the same, in this order.
enum { BY_OTHER_NODES, BY_SIBLINGS, BY_CEILING, BY_DIECAST, BY_OTHERS, BY_NOBODY, CAUSES };

// A node's threads.
struct waited {
	__u64 ran_ns[CORES_MAX];
	__u64 ns[CAUSES];
};

// Sums at one instant, as one thread sees them.
struct sums {
	__u64 ran_ns[CLASSES];
	// The thread's own node.
	__u64 own_ns;
	__u64 throttled_ns;
};

// A thread's wait; none while `since_ns` is 0.
struct wait {
	__u64 since_ns;
	struct sums then;
	__u32 core;
	__u32 pad;
};

// host/egress/src/lib.rs reads what it runs: `class` and `cookie` by their places, and NODES.
struct core {
	// When it got what it runs, and what that is.
	__u64 since_ns;
	__u64 class;
	__u64 cookie;
	// Up to then.
	__u64 ran_ns[CLASSES];
	// Cores don't share cache lines.
	__u64 pad;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CORES_MAX);
	__type(key, __u32);
	__type(value, struct core);
} cores SEC(".maps");

// The process that loaded this, as the kernel numbers it: `loader` finds out.
__u32 own = 0;

SEC("syscall")
int loader(void *context)
{
	own = bpf_get_current_task_btf()->tgid;
	return 0;
}

static __always_inline bool is_own(struct task_struct *task)
{
	return (__u32)task->tgid == own;
}

// The threads that keep cores awake give way at once: they are nobody.
static __always_inline __u64 class_of(struct task_struct *task, bool of_node)
{
	if (is_own(task))
		return task->policy == SCHED_IDLE ? NOBODY : DIECAST;
	if (of_node)
		return NODES;
	return task->pid ? OTHERS : NOBODY;
}

// For how long the ceiling has held the thread's group on its core so far.
static __always_inline __u64 throttled_ns(struct task_struct *task)
{
	struct cfs_rq *queue;
	__u64 ns, since, now;

	if (!bpf_core_field_exists(struct cfs_rq, throttled_clock_self_time) ||
	    !bpf_core_field_exists(struct sched_entity, cfs_rq))
		return 0;
	queue = task->se.cfs_rq;
	ns = queue->throttled_clock_self_time;
	since = queue->throttled_clock_self;
	if (!since)
		return ns;
	now = queue->rq->clock;
	return now > since ? ns + now - since : ns;
}

static __always_inline void read_sums(struct sums *s, struct task_struct *task, struct waited *node, __u64 cookie,
				      __u32 at, __u64 now)
{
	struct core *core = bpf_map_lookup_elem(&cores, &at);
	__u64 running;

	s->throttled_ns = throttled_ns(task);
	if (!core || at >= CORES_MAX)
		return;
#pragma unroll
	for (int i = 0; i < CLASSES; i++)
		s->ran_ns[i] = core->ran_ns[i];
	s->own_ns = node->ran_ns[at];
	if (!core->since_ns || now < core->since_ns || core->class >= CLASSES)
		return;
	running = now - core->since_ns;
	s->ran_ns[core->class] += running;
	if (core->class == NODES && core->cookie == cookie)
		s->own_ns += running;
}

static __always_inline void wait_begins(struct wait *w, struct task_struct *task, struct waited *node, __u64 cookie,
					__u32 at, __u64 now)
{
	if (is_own(task))
		return;
	w->core = at;
	w->since_ns = now;
	read_sums(&w->then, task, node, cookie, at, now);
}

static __always_inline __u64 gain(__u64 from, __u64 to)
{
	return to > from ? to - from : 0;
}

static __always_inline __u64 least(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

static __always_inline void add(__u64 *sum, __u64 ns)
{
	if (ns)
		__sync_fetch_and_add(sum, ns);
}

// Whether nobody had the core meanwhile.
static __always_inline bool wait_ends(struct wait *w, struct task_struct *task, struct waited *node, __u64 cookie,
				      __u64 now)
{
	struct sums s = {};
	__u64 by[CAUSES], all, left, sum;

	if (!w->since_ns)
		return false;
	all = gain(w->since_ns, now);
	w->since_ns = 0;
	read_sums(&s, task, node, cookie, w->core, now);
	by[BY_OTHER_NODES] = gain(w->then.ran_ns[NODES], s.ran_ns[NODES]);
	by[BY_SIBLINGS] = least(gain(w->then.own_ns, s.own_ns), by[BY_OTHER_NODES]);
	by[BY_OTHER_NODES] -= by[BY_SIBLINGS];
	by[BY_DIECAST] = gain(w->then.ran_ns[DIECAST], s.ran_ns[DIECAST]);
	by[BY_OTHERS] = gain(w->then.ran_ns[OTHERS], s.ran_ns[OTHERS]);
	by[BY_NOBODY] = gain(w->then.ran_ns[NOBODY], s.ran_ns[NOBODY]);
	by[BY_CEILING] = least(gain(w->then.throttled_ns, s.throttled_ns), all);
	if (!bpf_core_field_exists(struct cfs_rq, throttled_clock_self_time))
		by[BY_CEILING] = least(by[BY_NOBODY], all);
	if (by[BY_CEILING]) {
		left = (all - by[BY_CEILING]) >> 10;
		by[BY_NOBODY] -= least(by[BY_NOBODY], by[BY_CEILING]);
		sum = by[BY_OTHER_NODES] + by[BY_SIBLINGS] + by[BY_DIECAST] + by[BY_OTHERS] + by[BY_NOBODY];
		sum = (sum >> 10) + 1;
#pragma unroll
		for (int i = 0; i < CAUSES; i++)
			if (i != BY_CEILING)
				by[i] = (by[i] >> 10) * left / sum << 10;
	}
#pragma unroll
	for (int i = 0; i < CAUSES; i++)
		add(&node->ns[i], by[i]);
	return !(by[BY_OTHER_NODES] | by[BY_SIBLINGS] | by[BY_CEILING] | by[BY_DIECAST] | by[BY_OTHERS]);
}

// A core goes from one thread to another. `node` is that of the one that ran, if any.
static __always_inline void passes_on(__u32 at, struct waited *node, struct task_struct *next, __u64 next_cookie,
				      bool to_node, __u64 now)
{
	struct core *core = bpf_map_lookup_elem(&cores, &at);
	__u64 ran;

	if (!core || at >= CORES_MAX)
		return;
	ran = core->since_ns ? gain(core->since_ns, now) : 0;
	if (core->class < CLASSES)
		core->ran_ns[core->class] += ran;
	if (node && core->class == NODES)
		node->ran_ns[at] += ran;
	core->since_ns = now;
	core->class = class_of(next, to_node);
	core->cookie = next_cookie;
}
