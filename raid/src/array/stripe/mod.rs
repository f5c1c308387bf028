//! stub
mod gather;
mod plan;
mod queue;
