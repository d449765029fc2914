//! Stub resolvers of Linux programs: glibc, musl, Go and c-ares, each in a small program built
//! where its compiler is installed.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::output;
use crate::isolated::{lacking, tool};

/// A program that prints the addresses of its argument, one a line.
#[derive(Debug)]
pub struct Stub {
    /// The name of its resolver.
    pub name: &'static str,
    program: PathBuf,
}

/// The result of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookedUp {
    /// The addresses found.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether it failed for another reason than a missing name or missing addresses: an
    /// application may retry.
    pub failed: bool,
    /// The program's error message.
    pub why: String,
}

impl Stub {
    /// Builds all programs that can be built here in `directory`.
    ///
    /// # Panics
    /// When one cannot be built though its compiler is installed.
    pub fn all(test: &str, directory: &Path) -> Vec<Self> {
        let file = |name: &str| directory.join(name);
        for (name, text) in [("look.c", C), ("look.go", GO), ("ares.c", C_ARES)] {
            fs::write(file(name), text).expect("the directory is the test's own");
        }
        let mut found = Vec::new();
        for (name, compiler, source, more) in [
            ("glibc", "cc", "look.c", &[][..]),
            ("musl", "musl-gcc", "look.c", &["-static"]),
            ("go", "go", "look.go", &[]),
            ("c-ares", "cc", "ares.c", &["-lcares"]),
        ] {
            if !tool(test, compiler) || name == "c-ares" && !has_c_ares(test) {
                continue;
            }
            let mut command = Command::new(compiler);
            if compiler == "go" {
                command.arg("build");
            }
            command.arg("-o").arg(file(name)).arg(file(source)).args(more);
            command.current_dir(directory).env("CGO_ENABLED", "0").env("GO111MODULE", "off");
            let built = output(command, PATIENCE);
            assert!(built.status.success(), "{name}: {}", String::from_utf8_lossy(&built.stderr));
            found.push(Self { name, program: file(name) });
        }
        found
    }

    /// Looks a name up by `/etc/resolv.conf`; `within` is a command that runs its arguments, such
    /// as `ip netns exec`.
    pub fn look_up(&self, mut within: Command, name: &str) -> LookedUp {
        within.arg(&self.program).arg(name);
        let printed = output(within, PATIENCE);
        let text = String::from_utf8_lossy(&printed.stdout).into_owned();
        LookedUp {
            addresses: text.split_whitespace().filter_map(|word| word.parse().ok()).collect(),
            failed: !matches!(printed.status.code(), Some(0 | 1)),
            why: String::from_utf8_lossy(&printed.stderr).into_owned(),
        }
    }
}

/// Whether c-ares can be compiled against.
fn has_c_ares(test: &str) -> bool {
    let mut command = Command::new("cc");
    command.args(["-E", "-include", "ares.h", "-x", "c", "/dev/null"]);
    let found = output(command, PATIENCE).status.success();
    if !found {
        lacking(test, "c-ares", "c-ares is not installed (libc-ares-dev)");
    }
    found
}

const PATIENCE: Duration = Duration::from_secs(120);

const C: &str = r#"
#define _GNU_SOURCE
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

#ifndef EAI_NODATA
#define EAI_NODATA EAI_NONAME
#endif

int main(int argc, char **argv) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *all, *one;
    if (argc < 2) return 2;
    int error = getaddrinfo(argv[1], "80", &hints, &all);
    if (error) fprintf(stderr, "%s\n", gai_strerror(error));
    if (error) return error == EAI_NONAME || error == EAI_NODATA ? 1 : 2;
    for (one = all; one; one = one->ai_next) {
        char host[128];
        if (!getnameinfo(one->ai_addr, one->ai_addrlen, host, sizeof host, 0, 0, NI_NUMERICHOST)) puts(host);
    }
    return 0;
}
"#;

/// A program like the one with getaddrinfo, but with c-ares's own sockets and parser of
/// resolv.conf.
const C_ARES: &str = r#"
#include <ares.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/select.h>

static int failed;

static void found(void *unused, int status, int timeouts, struct ares_addrinfo *all) {
    if (status != ARES_SUCCESS) failed = status == ARES_ENODATA || status == ARES_ENOTFOUND ? 1 : 2;
    if (failed) fprintf(stderr, "%s, %d timeouts\n", ares_strerror(status), timeouts);
    for (struct ares_addrinfo_node *one = all ? all->nodes : NULL; one; one = one->ai_next) {
        char host[INET6_ADDRSTRLEN];
        const void *address = one->ai_family == AF_INET6
            ? (const void *)&((struct sockaddr_in6 *)one->ai_addr)->sin6_addr
            : (const void *)&((struct sockaddr_in *)one->ai_addr)->sin_addr;
        if (inet_ntop(one->ai_family, address, host, sizeof host)) puts(host);
    }
    ares_freeaddrinfo(all);
}

int main(int argc, char **argv) {
    struct ares_addrinfo_hints hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    ares_channel channel;
    if (argc < 2 || ares_library_init(ARES_LIB_INIT_ALL) || ares_init(&channel)) return 2;
    ares_getaddrinfo(channel, argv[1], "80", &hints, found, NULL);
    for (;;) {
        fd_set readers, writers;
        struct timeval wait;
        FD_ZERO(&readers);
        FD_ZERO(&writers);
        int count = ares_fds(channel, &readers, &writers);
        if (!count) break;
        select(count, &readers, &writers, NULL, ares_timeout(channel, NULL, &wait));
        ares_process(channel, &readers, &writers);
    }
    ares_destroy(channel);
    return failed;
}
"#;

const GO: &str = r#"
package main

import (
	"errors"
	"fmt"
	"net"
	"os"
)

func main() {
	addresses, err := net.LookupHost(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		var failure *net.DNSError
		if errors.As(err, &failure) && failure.IsNotFound {
			os.Exit(1)
		}
		os.Exit(2)
	}
	for _, address := range addresses {
		fmt.Println(address)
	}
}
"#;
