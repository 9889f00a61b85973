//! Options as mount(8) takes them.
