// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// The kernel's structures, only what is read; libbpf finds the offsets in the kernel's BTF.
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct net {
	__u64 net_cookie;
};
typedef struct {
	struct net *net;
} possible_net_t;
struct net_device {
	possible_net_t nd_net;
};
struct sk_buff {
	struct net_device *dev;
	__u16 transport_header;
	unsigned char *head;
};
struct nsproxy {
	struct net *net_ns;
};
struct upid {
	int nr;
};
struct pid {
	unsigned int level;
	struct upid numbers[1];
};
struct rq {
	__u64 clock;
};
struct cfs_rq {
	struct rq *rq;
	__u64 throttled_clock_self;
	__u64 throttled_clock_self_time;
};
struct sched_entity {
	__u64 exec_start;
	__u64 sum_exec_runtime;
	__u64 nr_migrations;
	struct cfs_rq *cfs_rq;
};
struct thread_info {
	__u32 cpu;
};
struct sched_info {
	unsigned long long run_delay;
	unsigned long long last_arrival;
};
struct task_struct {
	struct thread_info thread_info;
	unsigned int flags;
	unsigned int policy;
	unsigned long jobctl;
	int pid;
	int tgid;
	struct sched_entity se;
	struct sched_info sched_info;
	struct nsproxy *nsproxy;
	struct pid *thread_pid;
	struct task_struct *group_leader;
	struct task_struct *real_parent;
	char comm[16];
	unsigned long nvcsw;
	unsigned long nivcsw;
};
struct pt_regs {
	unsigned long orig_ax;
	unsigned long r8;
	unsigned long sp;
};
#pragma clang attribute pop
