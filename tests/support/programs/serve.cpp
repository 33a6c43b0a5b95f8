// The example of docs/using.md, built in this tree.
#include "docs/examples/serving/serve.cpp"
