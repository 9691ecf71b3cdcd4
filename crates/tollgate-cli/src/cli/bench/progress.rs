//! The progress bar of a load, on a terminal only.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::load::LoadProgress;

/// Time between two updates.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);

/// A thread that draws on standard error until it is dropped; it draws nothing if that is not a terminal.
pub(super) struct ProgressDrawer {
    /// Dropped first, which ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressDrawer {
    /// Begins to draw the progress of a load of so many requests.
    pub(super) fn start(progress: Arc<LoadProgress>, requests: u64) -> ProgressDrawer {
        let bar = ProgressBar::with_draw_target(Some(requests), ProgressDrawTarget::stderr());
        if bar.is_hidden() {
            return ProgressDrawer { stop: None, thread: None };
        }
        let form = "{elapsed:>4} [{bar:30}] {pos}/{len} {per_sec}  {msg}";
        let style = ProgressStyle::with_template(form).expect("the template is valid");
        bar.set_style(style.progress_chars("=> "));
        let (stop, stopped) = channel();
        let thread = thread::spawn(move || {
            while stopped.recv_timeout(UPDATE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                draw(&bar, &progress);
            }
            bar.finish_and_clear();
        });
        ProgressDrawer { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for ProgressDrawer {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; the result of the load does not depend on it.
            let _ = thread.join();
        }
    }
}

fn draw(bar: &ProgressBar, progress: &LoadProgress) {
    let counters = [&progress.allowed, &progress.refused, &progress.errors];
    let [allowed, refused, errors] = counters.map(|counter| counter.load(Ordering::Relaxed));
    bar.set_position(allowed + refused + errors);
    bar.set_message(format!("{allowed} allowed, {refused} refused, {errors} errors"));
}
