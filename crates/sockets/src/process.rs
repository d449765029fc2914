//! Process and thread calls that the standard library lacks.

use std::fs;
use std::io;
use std::mem::zeroed;
use std::ops::Range;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Raises the limit of open files to the hard limit; returns the limit before and after.
///
/// # Errors
/// Of the kernel; the limit is unchanged then.
pub fn raise_open_files_limit() -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one live rlimit.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let before = limit.rlim_cur;
    if before < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the kernel reads one live rlimit.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok((before, limit.rlim_cur))
}

/// Locks the process's code and read-only data in memory as they are first used (MLOCK_ONFAULT).
/// Otherwise they are the first that the kernel evicts when the cgroup or the machine runs out of
/// memory, and each query that needs them waits for the disk. Resident memory is no more than
/// before.
///
/// # Errors
/// `OutOfMemory` if they exceed `RLIMIT_MEMLOCK` without CAP_IPC_LOCK; others of the kernel. What
/// was locked before the failure stays locked.
pub fn keep_code_in_memory() -> io::Result<()> {
    for Range { start, end } in code_of(&fs::read_to_string("/proc/self/maps")?) {
        // SAFETY: three integers. No memory is written or unmapped, and an unmapped range is an
        // error.
        if unsafe { libc::syscall(libc::SYS_mlock2, start, end - start, libc::MLOCK_ONFAULT) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Returns the address ranges of the files that this process was loaded from, without writable
/// ranges (proc(5), `maps`).
fn code_of(maps: &str) -> impl Iterator<Item = Range<usize>> {
    maps.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let is_read_alone = words.next()?.starts_with("r-");
        let is_file = words.nth(3)?.starts_with('/');
        let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).ok());
        (is_read_alone && is_file).then_some(start?..end?)
    })
}

/// Pins the calling thread to one core, counted from 0.
///
/// # Errors
/// `InvalidInput` if the core does not exist or is not allowed for this process.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a cpu_set_t is plain integers, and `core` is within it. 0 is the calling thread.
    let done = unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Requests a shorter time slice for the calling thread (EEVDF, Linux 6.12 and later; 0.1 to 100
/// ms), so that after waking it preempts a thread with a longer slice (0.7 to 3 ms, in effect a
/// timer tick). Its share of the processor is unchanged. Earlier kernels ignore the request.
///
/// # Errors
/// Of the kernel or a seccomp filter; nothing has changed then.
pub fn set_time_slice(slice: Duration) -> io::Result<()> {
    // SAFETY: the kernel writes at most the given number of bytes into one live sched_attr, which
    // is plain integers, and reads as many from it. 0 is the calling thread.
    let done = unsafe {
        let mut attributes: libc::sched_attr = zeroed();
        let size = size_of_val(&attributes) as libc::c_uint;
        let known = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0);
        attributes.sched_runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
        if known == 0 { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } else { known }
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Starts a thread with a file table of its own, in which only stdin, stdout and stderr are open,
/// so that its files are closed as soon as the thread ends. Threads of a killed process end one by
/// one, while shared memory and files live until the last. Before Linux 5.9 the table is shared.
///
/// `run` must not capture descriptors: they are closed when it starts.
///
/// # Errors
/// Of the kernel when it creates the thread.
pub fn spawn_with_own_files(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        // SAFETY: three integers. The thread has just started and owns no descriptor; those of
        // other threads stay open, because only this thread's copy of the table is changed.
        let _ = unsafe {
            libc::syscall(
                libc::SYS_close_range,
                libc::STDERR_FILENO + 1,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_UNSHARE,
            )
        };
        run();
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{File, read_dir};
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such call")]
    fn own_file_table_is_separate() {
        let shared = File::open("/dev/zero").expect("every machine has it");
        let (sender, receiver) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = spawn_with_own_files("apart", move || {
            let own = File::open("/dev/null").expect("every machine has it");
            let open = read_dir("/proc/thread-self/fd").expect("it is there").flatten();
            // The last one reads the directory.
            let open: Vec<_> = open.filter_map(|file| fs::read_link(file.path()).ok()).collect();
            sender.send((own.as_raw_fd(), open)).expect("it is waited for");
            let _ = ended.recv();
        });
        let (number, open) = receiver.recv().expect("it sends them");
        assert!(!open.iter().any(|file| file.as_os_str() == "/dev/zero"), "{open:?}");
        let here = fs::read_link(format!("/proc/thread-self/fd/{number}")).ok();
        assert_ne!(here.as_deref(), Some("/dev/null".as_ref()));
        assert!(shared.metadata().is_ok(), "it is still open here");
        drop(end);
        thread.expect("it begins").join().expect("no panic");
    }

    /// The scheduling policy and the nice value do not change.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such call")]
    fn time_slice_is_clamped() {
        let read = |file: &str| fs::read_to_string(format!("/proc/thread-self/{file}")).unwrap_or_default();
        // Behind the name: state, and the nineteenth field is the nice value.
        let nice = || {
            read("stat").rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(16)?.parse::<i32>().ok())
        };
        // Kernels that ignore the slice do not show it.
        let shown = || {
            let text = read("sched");
            let line = text.lines().find(|line| line.starts_with("se.slice "))?;
            line.rsplit(' ').next()?.parse::<u64>().ok()
        };
        let before = nice();
        assert!(before.is_some());
        for (asked, given) in
            [(Duration::from_micros(100), 100_000), (Duration::from_secs(1000), 100_000_000)]
        {
            set_time_slice(asked).expect("every thread may");
            assert!(shown().is_none_or(|slice| slice == given), "{asked:?}: {:?}", shown());
        }
        assert_eq!(nice(), before);
    }

    #[test]
    fn code_ranges_of_proc_maps() {
        let maps = "\
7f10-7f20 r--p 00000000 fe:00 11 /usr/local/bin/a name
7f20-7f50 r-xp 00010000 fe:00 11 /usr/local/bin/localdns (deleted)
7f50-7f60 rw-p 00040000 fe:00 11 /usr/local/bin/localdns
7f60-7f70 rw-p 00000000 00:00 0
7f70-7f80 r--p 00000000 00:00 0
7f80-7f90 r-xp 00000000 00:00 0                          [vdso]
7f90-7fa0 ---p 00000000 fe:00 12 /lib/x.so
nonsense
zz-7fb0 r-xp 0 fe:00 11 /x";
        assert_eq!(code_of(maps).collect::<Vec<_>>(), [0x7f10..0x7f20, 0x7f20..0x7f50]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such call")]
    fn open_files_limit_is_raised() {
        let (before, now) = raise_open_files_limit().expect("the limit can be raised");
        assert!(before <= now);
        assert_eq!(raise_open_files_limit().expect("raised already"), (now, now));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such call")]
    fn pinned_thread_stays() {
        thread::spawn(|| {
            pin_to_core(0).expect("core 0 exists");
            let status = fs::read_to_string("/proc/thread-self/status").expect("readable");
            assert!(status.lines().any(|line| line == "Cpus_allowed_list:\t0"), "{status}");
            for core in [1023, 1024, usize::MAX] {
                let error = pin_to_core(core).expect_err("no such core");
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{core}");
            }
        })
        .join()
        .expect("no panic");
    }
}
