//! stub
mod queue;
