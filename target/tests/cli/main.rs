//! The program as a person or a script sees it: arguments in; output, exit code and drives out.

#![allow(clippy::unwrap_used, missing_docs)]

mod array;
mod bench;
mod composed;
mod control;
mod documentation;
mod drive;
mod members;
mod program;
mod service;
mod streams;
