//! Budget borrowed ahead.

use super::*;
