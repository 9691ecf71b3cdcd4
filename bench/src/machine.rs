//! The machine: its description, the cores of threads, and the memory of the process.
//!
//! `unsafe`: pinning a thread and waiting for a signal are calls to the C library.

#![allow(unsafe_code)]

use std::process::Command;

/// Processor, cores and compiler, in one line.
pub fn describe() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let rustc = Command::new("rustc").arg("--version").output();
    let rustc = rustc.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    format!(
        "{}, {cores} cores, {}",
        model.unwrap_or("an unknown processor"),
        rustc.as_deref().map_or("an unknown rustc", str::trim)
    )
}

/// The system's load average: the higher it is, the less a measurement is worth.
pub fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or("unknown").to_owned()
}

/// Pins the calling thread to one core, if the system allows it.
pub fn pin(core: usize) {
    // SAFETY: an all-zero set is a valid empty set; both calls only touch this local value, whose
    // size is passed along. Thread 0 means the calling one.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// Lets SIGTERM end this process by `exit`, so that a build with profiles writes them. Call it before the first
/// thread starts: a thread of its own waits for the signal, and threads inherit that they do not receive it.
pub fn exit_on_sigterm() {
    // SAFETY: `sigemptyset` initialises the set before it is used; all calls only touch this local value.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        set
    };
    std::thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: reads the set and writes one number; both outlive the call.
        unsafe { libc::sigwait(&raw const set, &raw mut signal) };
        std::process::exit(0);
    });
}

/// The cores that a process may run on, such as `0-3` or `1`.
pub fn cores_of(process: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    cores.unwrap_or("unknown").trim().to_owned()
}

/// Bytes of memory that this process holds (resident set size).
pub fn resident_bytes() -> u64 {
    resident_bytes_of(std::process::id()).unwrap_or(0)
}

/// Bytes of memory that a process holds; `None` if there is no such process.
pub fn resident_bytes_of(process: u32) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    // SAFETY: asks for a constant of the system.
    Some(pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64)
}
