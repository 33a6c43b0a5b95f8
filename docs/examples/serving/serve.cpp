// Serves a trained classifier or regression: reads CSV with a header from standard input, and prints for each row the
// likeliest class with its probability, or the numbers that the model gives. Columns are those of the training file, in
// any order: prepare() scales them and numbers their words as in training.
//
//   printf 'size,colour\n3.5,red\n' | build/serve runs/leaves
#include <convoy/load.h>

#include <iostream>
#include <string>
#include <vector>

namespace {

void print(const at::Tensor& output, int64_t number_of_classes, const std::vector<std::string>& classes) {
  if (number_of_classes == 0) {
    std::cout << output.item<float>() << '\n';
    return;
  }
  const at::Tensor probabilities = output.softmax(0);
  const int64_t best = probabilities.argmax().item<int64_t>();
  std::cout << (classes.empty() ? std::to_string(best) : classes[size_t(best)]) << ' '
            << probabilities[best].item<float>() << '\n';
}

void serve(const convoy::LoadedModel& model) {
  const int64_t number_of_classes = model.schema().at("target", "serve").cardinality;
  const std::vector<std::string> classes = model.names("classes");
  std::string header;
  std::getline(std::cin, header);
  for (std::string line; std::getline(std::cin, line);) {
    const convoy::Batch row = model.prepare(header + "\n" + line + "\n");
    print(model.forward(row).front()[0], number_of_classes, classes);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "serve RUN < rows.csv\n";
    return 64;
  }
  try {
    serve(convoy::load(argv[1]));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
