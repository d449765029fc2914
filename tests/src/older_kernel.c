/* Asks the kernel for nftables as a program does whose kernel is older: what LACKS names is asked for in a way that this
 * kernel does not know either, so that it refuses the transaction itself, and has put nothing there. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static int is_netfilter(int socket) {
    int domain = 0, protocol = 0;
    socklen_t length = sizeof domain;
    if (getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &length) || domain != AF_NETLINK) return 0;
    length = sizeof protocol;
    return !getsockopt(socket, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) && protocol == NETLINK_NETFILTER;
}

/* A flag that no table has. */
static void without_owner(char *at, char *end) {
    while (at + NLA_HDRLEN <= end) {
        struct nlattr *attribute = (struct nlattr *)at;
        if (attribute->nla_len < NLA_HDRLEN) return;
        uint32_t flags;
        if (attribute->nla_type == NFTA_TABLE_FLAGS && at + NLA_HDRLEN + sizeof flags <= end) {
            memcpy(&flags, at + NLA_HDRLEN, sizeof flags);
            if (ntohl(flags) & 2 /* NFT_TABLE_F_OWNER */) flags = htonl(1u << 30);
            memcpy(at + NLA_HDRLEN, &flags, sizeof flags);
        }
        at += NLA_ALIGN(attribute->nla_len);
    }
}

/* An expression that no kernel has. */
static void without_socket(char *at, char *end) {
    struct { struct nlattr head; char name[7]; } wanted = {{NLA_HDRLEN + 7, NFTA_EXPR_NAME}, "socket"};
    size_t length = NLA_HDRLEN + sizeof wanted.name;
    while ((at = memmem(at, end - at, &wanted, length))) {
        at[NLA_HDRLEN] = 'S';
        at += length;
    }
}

static void age(char *at, char *end) {
    const char *lacks = getenv("LACKS");
    while (lacks && at + NLMSG_HDRLEN + sizeof(struct nfgenmsg) <= end) {
        struct nlmsghdr *message = (struct nlmsghdr *)at;
        if (message->nlmsg_len < NLMSG_HDRLEN || message->nlmsg_len > end - at) return;
        char *from = at + NLMSG_HDRLEN + sizeof(struct nfgenmsg), *to = at + message->nlmsg_len;
        if (message->nlmsg_type == (NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWTABLE) && strstr(lacks, "owner"))
            without_owner(from, to);
        if (message->nlmsg_type == (NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWRULE) && strstr(lacks, "socket"))
            without_socket(from, to);
        at += NLMSG_ALIGN(message->nlmsg_len);
    }
}

ssize_t send(int socket, const void *message, size_t length, int flags) {
    ssize_t (*as_it_is)(int, const void *, size_t, int) =
        (ssize_t (*)(int, const void *, size_t, int))dlsym(RTLD_NEXT, "send");
    char *copy = is_netfilter(socket) ? malloc(length) : NULL;
    if (!copy) return as_it_is(socket, message, length, flags);
    memcpy(copy, message, length);
    age(copy, copy + length);
    ssize_t sent = as_it_is(socket, copy, length, flags);
    free(copy);
    return sent;
}
