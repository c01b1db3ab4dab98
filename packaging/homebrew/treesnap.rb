# The formula of a tap. `brew update-python-resources treesnap` writes the resources, with the
# checksums of the release, between the dependencies and `def install`.
class Treesnap < Formula
  include Language::Python::Virtualenv

  desc "Undo for any directory: verified snapshots and all-or-nothing restore"
  homepage "https://github.com/treesnap/treesnap"
  url "https://files.pythonhosted.org/packages/source/t/treesnap/treesnap-0.2.0.dev0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "Apache-2.0"

  depends_on "rust" => :build # blake3
  depends_on "libyaml"
  depends_on "python@3.14"

  # resources: blake3 click msgpack platformdirs pyfastcdc python-ulid pyyaml rich tomlkit watchdog

  def install
    virtualenv_install_with_resources
  end

  test do
    (testpath/"root/a").write "first"
    system bin/"treesnap", "-C", testpath/"root", "create"
    (testpath/"root/a").write "second"
    system bin/"treesnap", "-C", testpath/"root", "restore", "latest"
    assert_equal "first", (testpath/"root/a").read
  end
end
