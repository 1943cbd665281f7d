//! Pages for people. Until there are more, one: what is served here.

pub(crate) mod home;
