// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// The first retransmission timeout of TCP connections in dilated nodes.
//
// TCP waits one real second for the answer to its first SYN or SYN-ACK, before it has measured a round trip. Every
// other time constant has a sysctl per network namespace; this one has only BPF_SOCK_OPS_TIMEOUT_INIT. The program
// hangs at the root of the cgroup v2 hierarchy, so it sees every TCP socket of the host, and knows nodes by the
// cookie of their network namespace.
//
// Rules:
// * A namespace that is not in the map is not ours: leave ctx->reply alone. Several labs attach a program each; the
//   kernel runs all of them over one context, so a reply of "no opinion" would undo another lab's answer. The kernel
//   starts with reply 0, which it takes as "no opinion" for this operation.
// * Always return 1. Any program that returns 0 voids the answers of all.
// * Write ctx->reply in one place: otherwise the compiler may form a modified context pointer, which the verifier
//   refuses.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define NODES_MAX 65536

// Network namespace cookie -> first timeout in jiffies. The loader finds it by name.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, NODES_MAX);
	__type(key, __u64);
	__type(value, __u32);
} rto_jiffies SEC(".maps");

SEC("sockops")
int initial_rto(struct bpf_sock_ops *ctx)
{
	__u64 cookie;
	__u32 *jiffies;

	if (ctx->op != BPF_SOCK_OPS_TIMEOUT_INIT)
		return 1;
	cookie = bpf_get_netns_cookie(ctx);
	jiffies = bpf_map_lookup_elem(&rto_jiffies, &cookie);
	if (jiffies)
		ctx->reply = *jiffies;
	return 1;
}

char _license[] SEC("license") = "GPL";
