//! Threads that prepare things, such as new rules and snapshots, run at a lower priority than those that
//! answer: on a busy machine compiling a thousand rules would otherwise delay requests by milliseconds.

use std::io;
use std::thread;

/// Niceness of background threads: a thread that answers gets about nine times as much processor time.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Starts a thread with low priority.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<thread::JoinHandle<T>> {
    thread::Builder::new().name(name.into()).spawn(move || {
        step_back();
        run()
    })
}

/// Lowers the priority of this thread alone. If the system refuses, the thread runs at normal priority.
#[cfg(target_os = "linux")]
fn step_back() {
    let _ = rustix::process::nice(NICENESS);
}

#[cfg(not(target_os = "linux"))]
fn step_back() {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_thread_steps_back_and_no_other() {
        let nice = || rustix::process::nice(0).expect("a number");
        let before = nice();
        let inside = spawn("test", nice).expect("a thread").join().expect("no panic");
        assert_eq!(inside, (before + NICENESS).min(19));
        assert_eq!(nice(), before);
    }
}
