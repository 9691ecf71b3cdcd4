//! `tollgate bench` on a terminal: a progress bar while it runs, a chart at the end.

use super::tmux::TmuxPane;
use crate::harness::TollgateProcess;

#[test]
fn a_load_shows_its_progress_and_then_a_chart() {
    let server = TollgateProcess::start(&["--limit", "5/hour"]);
    let command = format!(
        "$TOLLGATE bench --target http://{} --rate 200/s --duration 2s --keys 10",
        server.http()
    );
    let pane = TmuxPane::run(80, 100, &command);
    pane.wait_until("a bar that moves", |text| text.contains("/400 ") && text.contains("=>"));
    let done = pane.wait_for("restored");
    assert!(!done.contains("=>"), "the bar is gone: {done}");
    for part in ["400 ", "99.99 %", "longest latency", "left 0"] {
        assert!(done.contains(part), "{part}: {done}");
    }
}
