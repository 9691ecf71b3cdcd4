//! Metrics of the process: memory, CPU time, file descriptors, start time. Read from `/proc`; on systems
//! without it these families are left out.

use std::fs;

use tollgate::Micros;

use super::exposition::{MetricKind, MetricValue, MetricsPage};

/// Ticks of `/proc/PID/stat` in a second: the kernel's `USER_HZ`, the same wherever Rust runs.
const TICKS: u64 = 100;

/// Writes the families of the process, under the names that dashboards expect.
pub(crate) fn write(page: &mut MetricsPage, started: Micros) {
    page.single_sample(
        "process_start_time_seconds",
        MetricKind::Gauge,
        MetricValue::Micros(started.as_u64()),
        "Start time of the process, in seconds since 1970.",
    );
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(resident) = resident_bytes(&status) {
        let help = "Resident memory of the process.";
        page.single_sample("process_resident_memory_bytes", MetricKind::Gauge, resident, help);
    }
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    if let Some(ticks) = cpu_ticks(&stat) {
        let time = MetricValue::Micros(ticks * (1_000_000 / TICKS));
        let help = "CPU time of all threads, user and system.";
        page.single_sample("process_cpu_seconds_total", MetricKind::Counter, time, help);
    }
    // Listing the directory opens one descriptor itself.
    let open = fs::read_dir("/proc/self/fd").ok().map(|list| list.count().saturating_sub(1));
    if let Some(open) = open {
        page.single_sample("process_open_fds", MetricKind::Gauge, open, "Open file descriptors.");
    }
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    if let Some(most) = descriptors_max(&limits) {
        page.single_sample(
            "process_max_fds",
            MetricKind::Gauge,
            most,
            "Limit of open file descriptors.",
        );
    }
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// CPU time in ticks. The name of the process is in brackets and may contain any character, so fields are
/// counted from the last bracket.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let [user, system] = [fields.next()?, fields.next()?].map(str::parse::<u64>);
    Some(user.ok()? + system.ok()?)
}

/// Limit of open file descriptors; `None` also if there is no limit.
fn descriptors_max(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_proc_are_read() {
        let stat = "42 (a) b) c) S 1 42 42 0 -1 4194560 2301 0 0 0 125 75 0 0 20 0 9 0 8 9";
        assert_eq!(cpu_ticks(stat), Some(200));
        assert_eq!(cpu_ticks("42 (a) S 1"), None);
        assert_eq!(cpu_ticks(""), None);
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t   12 kB\nThreads:\t1\n"), Some(12 << 10));
        assert_eq!(resident_bytes("VmRSS: lots"), None);
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\n";
        assert_eq!(descriptors_max(limits), Some(1_024));
        assert_eq!(descriptors_max("Max open files  unlimited  unlimited  files"), None);
    }
}
