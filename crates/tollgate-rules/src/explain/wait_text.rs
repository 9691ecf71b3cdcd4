//! Waits as people read them: `960 ms`, `37.5 s`, `5 min 20 s`, `2 d 3 h`.

use tollgate::Wait;

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// A wait, rounded up: to milliseconds below two minutes, then to the smaller of its two units.
pub(super) fn wait_text(wait: Wait) -> String {
    let Some(micros) = wait.as_micros() else { return "never".into() };
    if micros < 1_000 {
        return wait.to_string();
    }
    let millis = micros.div_ceil(1_000);
    if millis <= 2 * MINUTE_MS {
        return Wait::from_micros(millis * 1_000).to_string();
    }
    let (large, small, names) = if millis <= HOUR_MS {
        (MINUTE_MS, 1_000, ["min", "s"])
    } else if millis <= DAY_MS {
        (HOUR_MS, MINUTE_MS, ["h", "min"])
    } else {
        (DAY_MS, HOUR_MS, ["d", "h"])
    };
    let smalls = millis.div_ceil(small);
    let (whole, part) = (smalls / (large / small), smalls % (large / small));
    match part {
        0 => format!("{whole} {}", names[0]),
        part => format!("{whole} {} {part} {}", names[0], names[1]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_rounded_up() {
        for (micros, want) in [
            (0, "0 s"),
            (250, "250 us"),
            (960_000, "960 ms"),
            (960_001, "961 ms"),
            (37_500_000, "37.5 s"),
            (120_000_000, "120 s"),
            (120_000_001, "2 min 1 s"),
            (3_600_000_000, "60 min"),
            (3_600_000_001, "1 h 1 min"),
            (86_400_000_001, "1 d 1 h"),
            (172_800_000_000, "2 d"),
        ] {
            assert_eq!(wait_text(Wait::from_micros(micros)), want);
        }
        assert_eq!(wait_text(Wait::NEVER), "never");
    }
}
