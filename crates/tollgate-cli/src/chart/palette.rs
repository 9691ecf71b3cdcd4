//! The colours of series. Each tone differs from the others in shape or pattern too, so that nobody has to
//! tell colours apart.

/// The meaning of a series, which decides its colour, its pattern and its symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeriesTone {
    /// Requests that arrive; neutral.
    Offered,
    /// Requests that are admitted at once.
    Admitted,
    /// Requests that are admitted after a wait.
    Delayed,
    /// Requests that are refused.
    Refused,
    /// A quantity over time, such as the level of a bucket or a latency.
    Level,
}

impl SeriesTone {
    /// All tones, for style sheets and tests.
    pub(super) const ALL: [SeriesTone; 5] = [
        SeriesTone::Offered,
        SeriesTone::Admitted,
        SeriesTone::Delayed,
        SeriesTone::Refused,
        SeriesTone::Level,
    ];

    /// The class of the tone in an SVG.
    pub(super) fn class(self) -> &'static str {
        match self {
            SeriesTone::Offered => "offered",
            SeriesTone::Admitted => "admitted",
            SeriesTone::Delayed => "delayed",
            SeriesTone::Refused => "refused",
            SeriesTone::Level => "level",
        }
    }

    /// The colours on a light and on a dark background.
    pub(super) fn colours(self) -> [&'static str; 2] {
        match self {
            SeriesTone::Offered => ["#8c959f", "#7d8590"],
            SeriesTone::Admitted => ["#1f6feb", "#58a6ff"],
            SeriesTone::Delayed => ["#bf8700", "#e3b341"],
            SeriesTone::Refused => ["#d1372c", "#ff7b72"],
            SeriesTone::Level => ["#6e56cf", "#bc9eff"],
        }
    }

    /// The number of the colour in a terminal, whose theme decides what it looks like.
    pub(super) fn ansi(self) -> u8 {
        match self {
            SeriesTone::Offered => 90,
            SeriesTone::Admitted => 36,
            SeriesTone::Delayed => 33,
            SeriesTone::Refused => 31,
            SeriesTone::Level => 35,
        }
    }

    /// The symbol of one event in a terminal.
    pub(super) fn symbol(self) -> char {
        match self {
            SeriesTone::Offered => '│',
            SeriesTone::Admitted => '●',
            SeriesTone::Delayed => '◐',
            SeriesTone::Refused => '×',
            SeriesTone::Level => '◆',
        }
    }

    /// The character of a whole cell of a bar in a terminal.
    pub(super) fn shade(self) -> char {
        match self {
            SeriesTone::Admitted | SeriesTone::Level => '█',
            SeriesTone::Offered | SeriesTone::Delayed => '▒',
            SeriesTone::Refused => '░',
        }
    }
}
