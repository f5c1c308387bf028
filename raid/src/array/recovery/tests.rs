//! Long tasks, one case each, over memory drives that can be told to refuse.
