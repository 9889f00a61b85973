// A delegate that does nothing, so that only the wrapper before it is measured.
int main(void) { return 0; }
