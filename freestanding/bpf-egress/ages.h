// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// How old what a burst touches is, beside the sleep before it: what other processes of the same program touched last, and the
// process's eighth last burst. Part of debt.bpf.c.

// core/cpu/src/cold.rs has the same.
#define GAP_BINS 24
// core/cpu/src/ages.rs has the same.
#define AGED_FROM 7
#define AGED_BINS (GAP_BINS - AGED_FROM)
#define AGE_ONE 16
#define PAST_BURSTS 8
// A process's first bursts are start-up: they touch what no later one does, and are cold for that.
#define STARTUP_BURSTS 300
// Programs are told apart by a hash of their names.
#define PROGRAMS 1024

// Of one burst: 0 when its own process ran last, and when it has no past yet.
struct of_age {
	__u32 program;
	__u32 past;
};

// Bursts by their ages, of which core/cpu/src/ages.rs has more; sums over those after a sleep long enough. Ages are
// logarithms (AGE_ONE for each doubling of a microsecond).
struct ages {
	__u64 count;
	__u64 cpu_us;
	__u64 square_us2;
	__u64 program;
	__u64 past;
	__u64 program_program;
	__u64 program_past;
	__u64 past_past;
	__u64 program_cpu_us;
	__u64 past_cpu_us;
};

// When a thread of a program last gave up a core, and of which process.
struct program {
	__u64 ran_ns;
	__u64 tgid;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PROGRAMS);
	__type(key, __u32);
	__type(value, struct program);
} programs SEC(".maps");

// What is known of a process, kept at its first thread.
struct process {
	// CLOCK_MONOTONIC when a thread of it last got or gave up a core, ns.
	__u64 busy_ns;
	// And when its last bursts began; the next one takes the place of the first.
	__u64 began_ns[PAST_BURSTS];
	__u32 next;
	__u32 pad;
};
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct process);
} processes SEC(".maps");

static __always_inline struct program *program_of(struct task_struct *task)
{
	__u64 name[2];
	__u32 at;

	bpf_core_read(name, sizeof(name), &task->group_leader->comm);
	at = ((name[0] ^ (name[1] << 1)) * 0x9e3779b97f4a7c15ull) >> 54;
	return bpf_map_lookup_elem(&programs, &at);
}

// Bin of a sleep: the binary logarithm of its microseconds.
static __always_inline __u32 gap_bin(__u64 gap_ns)
{
	__u64 us = gap_ns / 1000;
	__u32 bin = 0;

#pragma unroll
	for (int i = 0; i < GAP_BINS - 1; i++)
		bin += (us >> (i + 1)) != 0;
	return bin;
}

// The age of what was so long ago: AGE_ONE times the binary logarithm of its microseconds, straight between powers; at least
// AGE_ONE.
static __always_inline __u32 age(__u64 ns)
{
	__u64 us = ns / 1000 | 2;
	__u32 bin = gap_bin(us * 1000);

	return AGE_ONE * bin + (__u32)(((us << 4) >> bin) & (AGE_ONE - 1));
}

// The ages of a burst that begins now, before which its process had not run since `slept_ns`.
static __always_inline void grow_old(struct of_age *o, struct task_struct *task, struct process *p, __u64 slept_ns,
				     __u64 now)
{
	struct program *program = program_of(task);
	__u64 began_ns;
	__u32 next;

	o->program = 0;
	if (program && program->ran_ns && program->ran_ns < now && program->tgid != (__u32)task->tgid)
		o->program = age(now - program->ran_ns);
	o->past = 0;
	if (!p)
		return;
	next = p->next++ & (PAST_BURSTS - 1);
	began_ns = p->began_ns[next];
	p->began_ns[next] = now;
	if (p->next > STARTUP_BURSTS && began_ns && began_ns < slept_ns)
		o->past = age(slept_ns - began_ns);
}

static __always_inline void count_ages(struct ages *a, struct of_age *o, __u64 cpu_us)
{
	__u64 program = o->program, past = o->past;

	__sync_fetch_and_add(&a->count, 1);
	__sync_fetch_and_add(&a->cpu_us, cpu_us);
	__sync_fetch_and_add(&a->square_us2, cpu_us * cpu_us);
	__sync_fetch_and_add(&a->program, program);
	__sync_fetch_and_add(&a->past, past);
	__sync_fetch_and_add(&a->program_program, program * program);
	__sync_fetch_and_add(&a->program_past, program * past);
	__sync_fetch_and_add(&a->past_past, past * past);
	__sync_fetch_and_add(&a->program_cpu_us, program * cpu_us);
	__sync_fetch_and_add(&a->past_cpu_us, past * cpu_us);
}
