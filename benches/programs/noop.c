// A delegate that does nothing: what is started before it is all that is measured.
int main(void) { return 0; }
