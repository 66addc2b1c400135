"""Small tools of Trio programs that many rooms use: waiting in order, checks of the event loop, groups of errors."""
