// Serves a trained classifier or regression: reads rows of numbers from standard input, one a line, and prints the
// likeliest class with its probability, or the numbers that the model gives.
//
//   echo 5.1,3.5,1.4,0.2 | build/serve runs/iris
#include <convoy/load.h>

#include <ATen/ops/tensor.h>

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::vector<float> numbers_of(std::string line) {
  for (char& c : line)
    if (c == ',') c = ' ';
  std::istringstream words(line);
  std::vector<float> numbers;
  for (float number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

void serve(const convoy::LoadedModel& model) {
  const convoy::Field& target = model.schema().at("target", "serve");
  const std::vector<std::string> classes = model.names("classes");
  std::vector<int64_t> shape = model.schema().at("features", "serve").shape;
  shape.insert(shape.begin(), 1);  // one row
  for (std::string line; std::getline(std::cin, line);) {
    const at::Tensor row = at::tensor(numbers_of(line)).reshape(shape);
    const at::Tensor output = model.forward(row)[0];
    if (target.cardinality == 0) {
      std::cout << output.item<float>() << '\n';
      continue;
    }
    const at::Tensor probabilities = output.softmax(0);
    const int64_t best = probabilities.argmax().item<int64_t>();
    std::cout << (classes.empty() ? std::to_string(best) : classes[size_t(best)]) << ' '
              << probabilities[best].item<float>() << '\n';
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
