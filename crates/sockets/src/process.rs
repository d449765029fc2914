//! Calls about the process and its threads that the standard library lacks.

use std::fs;
use std::io;
use std::mem::zeroed;
use std::ops::Range;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Raises the limit of open files to what this process may have; returns the limit before and now.
///
/// # Errors
/// What the kernel says; the limit is as before then.
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

/// Has what this process runs stay in memory once it is there: code, and what is read of the files it was loaded from, is
/// otherwise the first that the kernel gives up where its control group or the machine runs out of memory, and each query that
/// needs it again waits for it. Resident is no more than before.
///
/// # Errors
/// What the kernel says; where they are more than `RLIMIT_MEMLOCK` allows `OutOfMemory`, without CAP_IPC_LOCK. What was
/// locked before the failure stays locked.
pub fn keep_code_in_memory() -> io::Result<()> {
    for Range { start, end } in code_of(&fs::read_to_string("/proc/self/maps")?) {
        // SAFETY: three integers. No memory is written or unmapped, and a range that is no more is an error.
        if unsafe { libc::syscall(libc::SYS_mlock2, start, end - start, libc::MLOCK_ONFAULT) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Where the files that this process was loaded from lie in memory, but for what can be written (proc(5), `maps`).
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

/// Keeps the calling thread on one core, counted from 0.
///
/// # Errors
/// `InvalidInput` when there is no such core or this process may not use it.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a cpu_set_t is plain integers, and `core` lies within it. 0 is the calling thread.
    let done = unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Asks that the calling thread, when it wakes, need not wait until whoever runs has used up a slice of time as long as
/// others' (0.7 to 3 ms, and in effect a tick of the clock). Its share of the processor stays what it is. Linux 6.12 and later
/// heed it (EEVDF), with 0.1 to 100 ms; earlier ones do nothing.
///
/// # Errors
/// What the kernel says, or a filter of system calls; nothing has changed then.
pub fn set_time_slice(slice: Duration) -> io::Result<()> {
    // SAFETY: the kernel writes at most as many octets as it is told into one live sched_attr, which is plain integers,
    // and reads as many from it. 0 is the calling thread.
    let done = unsafe {
        let mut attributes: libc::sched_attr = zeroed();
        let size = size_of_val(&attributes) as libc::c_uint;
        let known = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0);
        attributes.sched_runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
        if known == 0 { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } else { known }
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Starts a thread with a table of open files of its own, in which only standard input, output and error are open: what it opens
/// is closed as soon as the thread ends. When a process is killed its threads end one by one, and what they share, the memory and
/// the other files, is taken down by the last of them. Before Linux 5.9 the files are shared.
///
/// `run` must not bring descriptors along: they are closed when it begins.
///
/// # Errors
/// What the kernel says to a thread.
pub fn spawn_with_own_files(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        // SAFETY: three integers. The thread has just begun and owns no descriptor, and those of others stay open: they are closed
        // in this thread's copy of the table.
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
    fn files_of_a_thread_with_its_own_are_nobody_elses() {
        let shared = File::open("/dev/zero").expect("every machine has it");
        let (say, said) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = spawn_with_own_files("apart", move || {
            let own = File::open("/dev/null").expect("every machine has it");
            let open = read_dir("/proc/thread-self/fd").expect("it is there").flatten();
            // The last is what reads the directory.
            let open: Vec<_> = open.filter_map(|file| fs::read_link(file.path()).ok()).collect();
            say.send((own.as_raw_fd(), open)).expect("it is waited for");
            let _ = ended.recv();
        });
        let (number, open) = said.recv().expect("it says so");
        assert!(!open.iter().any(|file| file.as_os_str() == "/dev/zero"), "{open:?}");
        let here = fs::read_link(format!("/proc/thread-self/fd/{number}")).ok();
        assert_ne!(here.as_deref(), Some("/dev/null".as_ref()));
        assert!(shared.metadata().is_ok(), "it is still open here");
        drop(end);
        thread.expect("it begins").join().expect("no panic");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such call")]
    fn a_time_slice_is_brought_into_its_bounds_and_changes_nothing_else() {
        let read = |file: &str| fs::read_to_string(format!("/proc/thread-self/{file}")).unwrap_or_default();
        // Behind the name: state, and the nineteenth field is the nice value.
        let nice = || {
            read("stat").rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(16)?.parse::<i32>().ok())
        };
        // Kernels that do not heed it do not show it.
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
    fn code_is_what_is_only_read_of_a_file() {
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
    fn the_open_files_limit_ends_at_its_maximum() {
        let (before, now) = raise_open_files_limit().expect("the limit can be raised");
        assert!(before <= now);
        assert_eq!(raise_open_files_limit().expect("raised already"), (now, now));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such call")]
    fn a_thread_stays_on_its_core_and_other_cores_are_refused() {
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
