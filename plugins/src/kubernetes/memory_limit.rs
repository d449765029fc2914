//! Memory limit for the objects of a cluster, from the memory limit of this process.

use std::fs;
use std::path::Path;

/// Returns the limit for objects: a third of the memory limit of the process's control groups, at
/// most 256 MiB. A changed service is built beside the old version, and the cache needs memory too,
/// so that objects may use less than half of the memory.
pub(super) fn room() -> usize {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    of(limit(&groups, Path::new("/sys/fs/cgroup")))
}

fn of(limit: Option<u64>) -> usize {
    limit.map_or(MOST_OCTETS, |limit| usize::try_from(limit / 3).unwrap_or(MOST_OCTETS).min(MOST_OCTETS))
}

/// Returns the lowest limit of the groups in `groups`, in the format of /proc/self/cgroup, and of
/// their ancestors.
fn limit(groups: &str, root: &Path) -> Option<u64> {
    let files = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let (root, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        // In a container the group's path may lie outside of the mounted hierarchy: the root of the
        // hierarchy is then the process's group.
        let group = root.join(group.trim_start_matches('/'));
        let around = group.ancestors().take_while(|group| group.starts_with(&root));
        around.map(|group| group.join(file)).collect()
    });
    // A group without a limit has `max`, or a number larger than any memory.
    files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).min()
}

/// Maximum limit in bytes; 10,000 services with 100,000 endpoints need some 40 MB.
const MOST_OCTETS: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_cgroup_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("a/memory.max", "268435456\n");
        write("a/b/memory.max", "max\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/docker/x/memory.limit_in_bytes", "178257920\n");
        for (groups, expected) in [
            ("0::/a/b\n", Some(256 << 20)),
            ("0::/a/b/c\n", Some(256 << 20)),
            ("0::/\n", None),
            ("0::/elsewhere\n", None),
            ("12:cpu,cpuacct:/a\n5:hugetlb,memory:/docker/x\n1:name=systemd:/a\n", Some(170 << 20)),
            ("5:memory:/outside\n", Some(9_223_372_036_854_771_712)),
            ("nonsense\n\n:\n", None),
        ] {
            assert_eq!(limit(groups, root.path()), expected, "{groups:?}");
        }
        assert_eq!(
            [of(None), of(Some(u64::MAX)), of(Some(170 << 20))],
            [256 << 20, 256 << 20, (170 << 20) / 3]
        );
    }
}
