//! Bodies that need `tollgate-rules`.

// Each test binary uses its own part of this module.
#![allow(dead_code, unused_imports)]

mod descriptors;
mod identity;
mod paths;
mod response_body;
mod rules_file;
mod servers;
#[path = "../source.rs"]
mod source;

pub use identity::identity;
pub use identity::oracle::oracle;
pub use paths::paths;
pub use response_body::response_body;
pub use rules_file::rules_file;
